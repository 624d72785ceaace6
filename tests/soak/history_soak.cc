// Every form of C++ client makes every kind of call as the first one after a crash, while replies are lost and calls
// are given up; the history of all answers is then checked against an undisturbed server's (README.md here).
//
//   history_soak --server=build/cpu/bin/gdn_server --rounds=20 --seed=1
//
// Two servers of the same program run. The tested one has a disk and a checkpoint policy, and is reached through a
// proxy that drops replies and cuts connections. It is killed (SIGKILL) when all workers have prepared the call that is
// to come first, and at random moments besides; after some kills its store is set back to a copy of before. Exit code 1
// where an answer is wrong, a call was applied other than once, a client has lost a session whose inputs it had, or a
// kind of call did not come first in some form of client.
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tests/soak/history.h"
#include "tests/soak/history_worker.h"
#include "tests/soak/run_in_folder.h"
#include "tests/soak/soak_state.h"
#include "tests/support/tcp_proxy.h"
#include "tools/common/restartable_server.h"

ABSL_FLAG(std::string, server, "", "The gdn_server program.");
ABSL_FLAG(int32_t, rounds, 1, "How often each form of client makes each kind of call first.");
ABSL_FLAG(uint64_t, seed, 1, "Of inputs and moments.");
ABSL_FLAG(int32_t, kill_every_ms, 1500, "Mean time between kills at random moments; 0: none.");
ABSL_FLAG(int32_t, cut_every_ms, 150, "Mean time between losses of replies; 0: none.");
ABSL_FLAG(int32_t, set_back_percent, 10, "How many of the kills set the store back to an earlier copy.");
ABSL_FLAG(std::string, history, "", "Where the history is written; empty: into a folder that goes.");
ABSL_FLAG(std::vector<std::string>, server_flags, {}, "More flags of both servers, such as --backend=gpu.");

namespace gdn {
namespace {

constexpr int kCopyPercent = 30;  // of the kills: the store is copied, for a later one to set it back to

// The server that crashes, and the workers that wait for its next crash.
class CrashPoint {
 public:
  // `store`: the server's folder.
  CrashPoint(RestartableServer& server, std::string store, uint64_t seed, SoakState& soak, int workers)
      : server_(server), store_(std::move(store)), random_(seed), soak_(soak), workers_(workers) {}

  // Returns when the server has crashed since, and is back; the last worker to come crashes it.
  void Arrive() {
    absl::MutexLock lock(&mu_);
    ++arrived_;
    CrashIfAllAreHere();
    const int64_t now = crashes_;
    const bool here = arrived_ > 0;
    if (!here) return;
    const auto crashed = [this, now]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return crashes_ != now; };
    mu_.Await(absl::Condition(&crashed));
  }
  // A worker has ended.
  void Leave() {
    absl::MutexLock lock(&mu_);
    --workers_;
    CrashIfAllAreHere();
  }
  // At once, whoever waits.
  void CrashNow() {
    absl::MutexLock lock(&server_mu_);
    server_.Kill();
    if (absl::Status status = SetBackOrCopy(); !status.ok()) soak_.Fail(status);
    if (const absl::Status status = server_.Start(); !status.ok()) soak_.Fail(status);
    ++kills_;
  }
  int64_t kills() const { return kills_; }
  int64_t set_backs() const { return set_backs_; }

 private:
  absl::Status SetBackOrCopy() ABSL_EXCLUSIVE_LOCKS_REQUIRED(server_mu_) {
    const int what = random_.NextInt(0, 99);
    const int set_back = absl::GetFlag(FLAGS_set_back_percent);
    std::error_code error;
    if (what < set_back && has_copy_) {
      error = Replace(store_, copy_);
      ++set_backs_;
    } else if (set_back > 0 && what >= set_back && what < set_back + kCopyPercent) {
      error = Replace(copy_, store_);
      has_copy_ = true;
    }
    return error ? absl::InternalError(AbslView(StrCat("copying ", store_, ": ", error.message()))) : absl::OkStatus();
  }
  static std::error_code Replace(const std::string& folder, const std::string& by) {
    std::error_code error;
    std::filesystem::remove_all(folder, error);
    if (!error) std::filesystem::copy(by, folder, std::filesystem::copy_options::recursive, error);
    return error;
  }
  void CrashIfAllAreHere() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (arrived_ < workers_ || arrived_ == 0) return;
    CrashNow();
    arrived_ = 0;
    ++crashes_;
  }

  RestartableServer& server_;
  const std::string store_;
  const std::string copy_ = StrCat(store_, "-copy");
  Random random_ ABSL_GUARDED_BY(server_mu_);
  bool has_copy_ ABSL_GUARDED_BY(server_mu_) = false;
  SoakState& soak_;
  std::atomic<int64_t> kills_ = 0, set_backs_ = 0;
  absl::Mutex mu_;
  int workers_ ABSL_GUARDED_BY(mu_);
  int arrived_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t crashes_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Mutex server_mu_;
};

// The forms of client. `hasty` ones give calls up all the time.
std::vector<WorkerOptions> Workers(Client& tested) {
  const DurableSessionOptions patient = {.first_backoff = absl::Milliseconds(2),
                                         .longest_backoff = absl::Milliseconds(50)};
  DurableSessionOptions hasty = patient;
  hasty.try_timeout = absl::Milliseconds(30);
  hasty.overall_timeout = absl::Milliseconds(100);
  const auto durable = [&tested](const DurableSessionOptions& options) {
    return [&tested, options](const std::vector<v1::CreateSessionRequest>& create) {
      return MakeDurablePlayer(tested, create, options);
    };
  };
  const auto reference = [&tested](CallForm form, absl::Duration timeout) {
    return [&tested, form, timeout](const std::vector<v1::CreateSessionRequest>& create) {
      return MakeReferencePlayer(tested, create.front(), form, MixedBy::kStep, timeout);
    };
  };
  return {{.form = "durable", .make = durable(patient)},
          {.form = "durable-hasty", .make = durable(hasty)},
          {.form = "batch", .sessions = 3, .make = durable(patient)},
          {.form = "batch-hasty", .sessions = 3, .make = durable(hasty)},
          {.form = "unary", .make = reference(CallForm::kUnary, absl::Seconds(5))},
          {.form = "unary-hasty", .make = reference(CallForm::kUnary, absl::Milliseconds(50))},
          {.form = "stream", .make = reference(CallForm::kStream, absl::Milliseconds(250))},
          {.form = "async", .make = reference(CallForm::kAsync, absl::Milliseconds(250))}};
}

// Calls `act` at random moments, `mean_ms` apart, until it is over.
void AtRandomMoments(int mean_ms, uint64_t seed, const std::atomic<bool>& over, const std::function<void()>& act) {
  Random random(seed);
  while (mean_ms > 0 && !over) {
    const absl::Time next = absl::Now() + absl::Milliseconds(random.NextInt(1, 2 * mean_ms));
    while (!over && absl::Now() < next) absl::SleepFor(absl::Milliseconds(1));
    if (!over) act();
  }
}

absl::Status Judge(const HistoryReport& report, const std::vector<WorkerOptions>& workers) {
  for (const std::string& fault : report.faults) std::cerr << "history_soak: " << fault << "\n";
  if (!report.faults.empty()) return absl::DataLossError("the history is not that of the undisturbed server");
  for (const WorkerOptions& worker : workers) {
    for (const std::string& call : SoakCalls()) {
      // A session that was brought back from the disk cannot be kept as a prefix.
      const auto form = report.firsts.find(worker.form);
      if (call == "keep prefix" || (form != report.firsts.end() && form->second.contains(call))) continue;
      return absl::InternalError(AbslView(StrCat(worker.form, " never made the call '", call, "' first")));
    }
  }
  return absl::OkStatus();
}

absl::Status RunSoak(const std::string& folder) {
  const uint64_t seed = absl::GetFlag(FLAGS_seed);
  const auto server = [&](const std::string& name, std::vector<std::string> more) {
    std::filesystem::create_directory(StrCat(folder, "/", name));
    std::vector<std::string> flags = absl::GetFlag(FLAGS_server_flags);
    for (const char* flag : {"--threads=1", "--device-state-bytes=256MiB", "--max-draft=8",
                             "--prefix-cache-bytes=16MiB", "--disk-high-watermark=100"}) {
      flags.emplace_back(flag);
    }
    flags.push_back(StrCat("--disk-dir=", folder, "/", name));
    flags.insert(flags.end(), more.begin(), more.end());
    return std::make_unique<RestartableServer>(absl::GetFlag(FLAGS_server), flags, folder, name);
  };
  const auto undisturbed = server("undisturbed", {});
  const auto crashing = server("crashing", {"--checkpoint-every-tokens=16"});
  GDN_RETURN_IF_ERROR(undisturbed->Start());
  GDN_RETURN_IF_ERROR(crashing->Start());
  int port = 0;
  if (!absl::SimpleAtoi(crashing->target().substr(crashing->target().rfind(':') + 1), &port)) {
    return absl::InternalError("the server has no port");
  }
  TcpProxy proxy(port);
  const auto truth = Client::Connect(undisturbed->target());
  const auto tested = Client::Connect(StrCat("127.0.0.1:", proxy.port()));
  const std::string path =
      absl::GetFlag(FLAGS_history).empty() ? folder + "/history.jsonl" : absl::GetFlag(FLAGS_history);
  GDN_ASSIGN_OR_RETURN(const auto writer, HistoryWriter::Create(path));

  SoakState soak;
  std::vector<WorkerOptions> options = Workers(*tested);
  CrashPoint crash_point(*crashing, StrCat(folder, "/crashing"), seed + 4, soak, static_cast<int>(options.size()));
  const SoakWorld world = {.truth = *truth,
                           .tested = *tested,
                           .writer = *writer,
                           .crash = [&] { crash_point.Arrive(); },
                           .set_backs = [&] { return crash_point.set_backs(); },
                           .over = [&] { return soak.over.load(); }};
  std::atomic<int64_t> recoveries = 0, cuts = 0;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < options.size(); ++i) {
    options[i].seed = seed * 1000 + i;
    threads.emplace_back([&, worker = options[i]] {
      HistoryWorker at_work(world, worker);
      if (absl::Status status = at_work.Run(absl::GetFlag(FLAGS_rounds)); !status.ok()) soak.Fail(status);
      recoveries += at_work.recoveries();
      crash_point.Leave();
    });
  }
  std::atomic<bool> done = false;
  std::thread killer(
      [&] { AtRandomMoments(absl::GetFlag(FLAGS_kill_every_ms), seed + 1, done, [&] { crash_point.CrashNow(); }); });
  std::thread cutter([&] {
    Random random(seed + 2);
    AtRandomMoments(absl::GetFlag(FLAGS_cut_every_ms), seed + 3, done, [&] {
      proxy.DropReplies();
      absl::SleepFor(absl::Milliseconds(random.NextInt(0, 8)));
      proxy.CloseConnections();
      ++cuts;
    });
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  killer.join();
  cutter.join();
  GDN_RETURN_IF_ERROR(soak.status());

  const HistoryReport report = CheckHistory({path});
  int64_t firsts = 0;
  for (const auto& [form, calls] : report.firsts) {
    for (const auto& [call, count] : calls) firsts += count;
  }
  absl::PrintF(
      "history_soak seed %d: %d kills, the store set back %d times, %d losses of replies, %d forms of client, %d calls "
      "first after a crash, %d lines, %d outputs compared, %d recoveries, %d sessions lost, %d faults\n",
      seed, crash_point.kills(), crash_point.set_backs(), cuts.load(), options.size(), firsts, report.lines,
      report.compared, recoveries.load(), report.lost, report.faults.size());
  return Judge(report, options);
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return gdn::RunInFolder("history_soak", gdn::RunSoak);
}
