#include "tools/gdn_bench/serve/serve_load.h"

#include <sys/prctl.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <functional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr double kLeadSeconds = 1e-3;  // before the first call of an open loop is due: every thread is there by then

struct Worker {
  std::vector<double> latencies_s;
  double start_s = 0;
  double end_s = 0;
  int64_t late = 0;
  absl::Status status;
};

// Runs `work(caller, worker, begin)` in a thread for each caller, all of them from the same moment on.
absl::StatusOr<std::vector<Worker>> RunWorkers(const Callers& callers,
                                               const std::function<absl::Status(Caller&, Worker&, double)>& work) {
  std::vector<Worker> workers(callers.size());
  double begin = 0;
  std::barrier ready(static_cast<std::ptrdiff_t>(callers.size()), [&begin]() noexcept { begin = NowSeconds(); });
  std::vector<std::thread> threads;
  for (size_t i = 0; i < callers.size(); ++i) {
    threads.emplace_back([&, i] {
      ready.arrive_and_wait();
      Worker& worker = workers[i];
      worker.start_s = NowSeconds();
      worker.status = work(*callers[i], worker, begin);
      worker.end_s = NowSeconds();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const Worker& worker : workers) GDN_RETURN_IF_ERROR(worker.status);
  return workers;
}

LoadBlock Gather(const std::vector<Worker>& workers) {
  LoadBlock block;
  for (const Worker& worker : workers) {
    block.latencies_s.insert(block.latencies_s.end(), worker.latencies_s.begin(), worker.latencies_s.end());
    block.late += worker.late;
  }
  return block;
}

absl::Status FallsBehind(size_t sent, size_t calls, double behind_s) {
  return absl::ResourceExhaustedError(absl::StrCat("the server does not keep up: ", sent, " of ", calls,
                                                   " calls were sent, and the next is ", behind_s,
                                                   " s late; lower --rate, or raise --in_flight"));
}

void SleepUntil(double when_s) {
  std::this_thread::sleep_until(std::chrono::steady_clock::time_point(
      std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(when_s))));
}

}  // namespace

absl::StatusOr<LoadBlock> RunClosedBlock(const Callers& callers, double seconds) {
  GDN_ASSIGN_OR_RETURN(const std::vector<Worker> workers,
                       RunWorkers(callers, [seconds](Caller& caller, Worker& worker, double begin) {
                         double now = 0;
                         do {
                           GDN_RETURN_IF_ERROR(caller.Prepare());
                           const double start = NowSeconds();
                           GDN_RETURN_IF_ERROR(caller.Call());
                           now = NowSeconds();
                           worker.latencies_s.push_back(now - start);
                         } while (now < begin + seconds);
                         return absl::OkStatus();
                       }));
  LoadBlock block = Gather(workers);
  for (const Worker& worker : workers) {
    block.calls_per_s += static_cast<double>(worker.latencies_s.size()) / (worker.end_s - worker.start_s);
  }
  return block;
}

absl::StatusOr<LoadBlock> RunOpenBlock(const Callers& callers, const std::vector<double>& arrival_times_s,
                                       double patience_s) {
  std::atomic<size_t> next{0};
  GDN_ASSIGN_OR_RETURN(const std::vector<Worker> workers,
                       RunWorkers(callers, [&](Caller& caller, Worker& worker, double begin) {
                         prctl(PR_SET_TIMERSLACK, 1UL);  // nanosecond: the thread sleeps until a call is due
                         GDN_RETURN_IF_ERROR(caller.Prepare());
                         for (size_t i = 0; (i = next.fetch_add(1)) < arrival_times_s.size();) {
                           const double due = begin + kLeadSeconds + arrival_times_s[i];
                           if (const double behind_s = NowSeconds() - due; behind_s > 0) {
                             if (behind_s > patience_s) return FallsBehind(i, arrival_times_s.size(), behind_s);
                             ++worker.late;
                           } else {
                             SleepUntil(due);
                           }
                           GDN_RETURN_IF_ERROR(caller.Call());
                           worker.latencies_s.push_back(NowSeconds() - due);
                           GDN_RETURN_IF_ERROR(caller.Prepare());
                         }
                         return absl::OkStatus();
                       }));
  LoadBlock block = Gather(workers);
  const double begun = std::ranges::min_element(workers, {}, &Worker::start_s)->start_s + kLeadSeconds;
  const double ended = std::ranges::max_element(workers, {}, &Worker::end_s)->end_s;
  block.calls_per_s = static_cast<double>(block.latencies_s.size()) / (ended - begun);
  return block;
}

}  // namespace gdn::bench
