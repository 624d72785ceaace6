// One client that is in everybody's way beside one that minds its own business: what does the latter notice?
//
//   neighbour_soak --server=build/cpu/bin/gdn_server --seconds=60
//
// A server with small limits, one well-behaved principal that decodes at a fixed rate, first alone and then beside a
// hostile one (hostile.h) in a process of its own. Of eight processors and more the server gets the lower half, the
// hostile one three quarters of the others and the well-behaved one the rest, for on separate machines they would not
// wait for each other's threads; of fewer the clients share the upper half, and of two all share both. Until the
// server verifies callers, it tells those that are not listed apart by the address that they call from; so the well-
// behaved one comes by a Unix socket, and the hostile one from 127.0.0.1, with all principals that it invents. Prints
// what both were answered, and what the server took. Exit code 1 where the well-behaved one sees an error or another
// bit than was learnt, the server takes more memory than its flags allow, a kind of hostility is not refused, or, with
// --check_times, the well-behaved one's p99 is more than twice, or its rate less than nine tenths, of what they should
// be.
#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"
#include "tests/soak/hostile.h"
#include "tests/soak/process_figures.h"
#include "tests/soak/run_in_folder.h"
#include "tests/soak/well_behaved.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tools/common/child_process.h"
#include "tools/common/restartable_server.h"

ABSL_FLAG(std::string, server, "", "The gdn_server program.");
ABSL_FLAG(double, seconds, 60, "Alone, and again beside the hostile one.");
ABSL_FLAG(double, patience, 300, "How many seconds longer, until every kind of hostility was answered as it is to be.");
ABSL_FLAG(double, calls_per_s, 50, "Of the well-behaved one.");
ABSL_FLAG(std::vector<std::string>, kinds, {}, "Kinds of hostility, to tell what one does; none: all.");
ABSL_FLAG(std::vector<std::string>, server_flags, {}, "More flags of the servers, such as --backend=gpu.");
ABSL_FLAG(int32_t, trace_calls, 0, "Calls that the server keeps traces of, to tell where slow ones had to wait.");
ABSL_FLAG(bool, check_memory, true,
          "Whether more memory than the flags allow is a failure; sanitizers take their own.");
ABSL_FLAG(bool, check_times, true, "Whether a p99 or a rate can be a failure.");
ABSL_FLAG(std::string, hostile_to, "", "Be the hostile one to the server at this address.");
ABSL_FLAG(std::string, begin_file, "", "What the hostile one waits for.");
ABSL_FLAG(std::string, without, "", "A kind of hostility to leave out.");

namespace gdn {
namespace {

constexpr double kMostP99Ratio = 2;
constexpr double kLeastAnswered = 0.9;
constexpr int64_t kMiB = int64_t{1} << 20;

// Bytes that the server's flags allow it to hold. `kept`: memory of ended calls that the process may keep.
struct Limits {
  int64_t device = 96 * kMiB;
  int64_t host = 16 * kMiB;
  int64_t calls = 24 * kMiB;
  int64_t copies = 24 * kMiB;
  int64_t replies = 8 * kMiB;
  int64_t transport = 128 * kMiB;
  int64_t kept = 512 * kMiB;

  int64_t sum() const { return device + host + calls + copies + replies + transport + kept; }
  std::vector<std::string> Flags() const {
    return {StrCat("--device-state-bytes=", device),
            StrCat("--host-state-bytes=", host),
            StrCat("--call-bytes=", calls),
            StrCat("--copy-bytes=", copies),
            StrCat("--stored-reply-bytes=", replies),
            StrCat("--transport-bytes=", transport),
            StrCat("--disk-state-bytes=", 512 * kMiB),
            StrCat("--max-message-bytes=", 8 * kMiB)};
  }
};

// The hostile process: waits, attacks, prints one line for each kind.
absl::Status BeHostile() {
  LowerThisThread(19);  // what clients do to each other on their own processors is not the server's matter
  while (!std::filesystem::exists(absl::GetFlag(FLAGS_begin_file))) absl::SleepFor(absl::Milliseconds(5));
  const HostileResult result = RunHostile(absl::GetFlag(FLAGS_hostile_to), absl::Seconds(absl::GetFlag(FLAGS_seconds)),
                                          absl::Seconds(absl::GetFlag(FLAGS_patience)), absl::GetFlag(FLAGS_kinds),
                                          absl::GetFlag(FLAGS_without));
  for (const auto& [kind, counts] : result.answers) {
    std::string text;
    for (const auto& [answer, count] : counts) text += StrCat(text.empty() ? "" : ", ", answer, " ", count);
    absl::PrintF("  %-20s %s\n", kind, text);
  }
  if (result.missing.empty()) return absl::OkStatus();
  return absl::DeadlineExceededError(
      StrCat("kinds of hostility without the answers that they are to have: ", result.missing));
}

void Print(const char* when, const LoadFigures& figures) {
  absl::PrintF(
      "  %-6s %.0f s: %d calls offered, %d answered (%.4f), %d errors; p50 %.2f ms, p90 %.2f ms, p99 %.2f ms, most "
      "%.2f ms\n",
      when, figures.seconds, figures.offered, figures.answered, figures.answered_part(), figures.errors,
      1e3 * figures.Quantile(0.5), 1e3 * figures.Quantile(0.9), 1e3 * figures.Quantile(0.99),
      1e3 * figures.Quantile(1));
  if (!figures.first_error.empty()) absl::PrintF("  first error: %s\n", figures.first_error);
}

std::string Text(const std::string& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

// A Redis that stands still most of the time, from Begin on. Nothing if there is no redis-server.
class SleepingRedis {
 public:
  SleepingRedis() {
    if (RedisServer::Installed()) redis_.emplace().Start();
  }
  ~SleepingRedis() { End(); }

  std::string endpoint() const { return redis_.has_value() ? redis_->endpoint() : ""; }
  void Begin() {
    if (redis_.has_value()) thread_ = std::thread([this] { Run(); });
  }
  void End() {
    over_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Run() {
    while (!over_) {
      redis_->Stop();
      absl::SleepFor(absl::Seconds(5));
      redis_->Continue();
      absl::SleepFor(absl::Seconds(2));
    }
  }

  std::optional<RedisServer> redis_;
  std::atomic<bool> over_ = false;
  std::thread thread_;
};

// The processors of each process. With few processors the lists are the same.
struct Shares {
  std::vector<int> server;
  std::vector<int> hostile;
  std::vector<int> well_behaved;
};
Shares ShareProcessors() {
  const std::vector<int> all = Processors();
  if (all.size() <= 2) return {.server = all, .hostile = all, .well_behaved = all};
  const auto at = [&all](size_t i) { return all.begin() + static_cast<std::ptrdiff_t>(i); };
  const size_t middle = all.size() / 2;
  if (all.size() < 8) return {{all.begin(), at(middle)}, {at(middle), all.end()}, {at(middle), all.end()}};
  const size_t last = all.size() - (all.size() - middle) / 4;
  return {{all.begin(), at(middle)}, {at(middle), at(last)}, {at(last), all.end()}};
}

// Collects the traces of a principal's calls while they come, for the server keeps the last of all principals together.
class TraceCollector {
 public:
  TraceCollector(const std::string& target, const std::string& token)
      : client_(Client::Connect(target, {.token = token})), thread_([this] { Run(); }) {}
  ~TraceCollector() { Stop(); }

  // By begin, on the steady clock that a client on this machine has too. Unit: nanoseconds.
  const std::map<int64_t, v1::CallTrace>& Stop() {
    stopped_ = true;
    if (thread_.joinable()) thread_.join();
    return traces_;
  }

 private:
  void Run() {
    while (!stopped_ && absl::GetFlag(FLAGS_trace_calls) > 0) {
      absl::SleepFor(absl::Milliseconds(300));
      auto traces = client_->TraceCalls({});
      if (!traces.ok()) continue;
      for (v1::CallTrace& trace : *traces->mutable_calls())
        traces_.insert_or_assign(trace.begin_ns(), std::move(trace));
    }
  }

  const std::unique_ptr<Client> client_;
  std::atomic<bool> stopped_ = false;
  std::map<int64_t, v1::CallTrace> traces_;  // the thread's until it has ended
  std::thread thread_;
};

// Prints the mean time in each stage, over the slowest 2% of the client's calls, as far as their traces were seen.
void PrintSlowest(const LoadFigures& load, const std::map<int64_t, v1::CallTrace>& traces) {
  std::map<std::string, double> parts_ms;
  int seen = 0;
  for (size_t i = load.calls.size() - load.calls.size() / 50; i < load.calls.size(); ++i) {
    const CallTimes& call = load.calls[i];
    const auto trace = traces.lower_bound(static_cast<int64_t>(1e9 * call.sent));
    if (trace == traces.end() || 1e-9 * static_cast<double>(trace->first) > call.answered) continue;
    ++seen;
    const double begin = 1e-9 * static_cast<double>(trace->first);
    const double end = begin + 1e-9 * static_cast<double>(trace->second.duration_ns());
    parts_ms["1 client late"] += 1e3 * (call.sent - call.due);
    parts_ms["2 before the server's handler"] += 1e3 * (begin - call.sent);
    parts_ms["4 after it"] += 1e3 * (call.answered - end);
    for (const v1::CallStage& stage : trace->second.stages()) {
      parts_ms[StrCat("3 ", v1::TraceStage_Name(stage.stage()))] += 1e-6 * static_cast<double>(stage.duration_ns());
    }
  }
  if (seen == 0) return;
  absl::PrintF("  %d of the slowest fiftieth, in the mean:", seen);
  for (const auto& [part, ms] : parts_ms) absl::PrintF(" %s %.2f ms;", part.substr(2), ms / seen);
  absl::PrintF("\n");
}

absl::StatusOr<StepFeed> LearnFeed(const std::string& target) {
  FeedOptions options{.key_heads = 4, .value_heads = 8, .key_dim = 64, .value_dim = 64, .layers = 4};
  const double longest = absl::GetFlag(FLAGS_seconds) + absl::GetFlag(FLAGS_patience) + 30;
  const int calls_a_token = WellBehavedOptions().groups * options.layers;  // of each session, in each layer
  options.tokens = static_cast<int64_t>(absl::GetFlag(FLAGS_calls_per_s) * longest) / calls_a_token + 16;
  return StepFeed::Learn(*Client::Connect(target), options);
}

absl::Status Judge(const LoadFigures& alone, const LoadFigures& beside, int64_t peak, int64_t limit, int hostile_code) {
  if (alone.errors + beside.errors > 0) return absl::InternalError("the well-behaved one has seen an error");
  if (absl::GetFlag(FLAGS_check_memory) && peak > limit)
    return absl::InternalError("the server took more memory than its limits allow");
  if (hostile_code != 0) return absl::InternalError("a kind of hostility was not answered as it is to be");
  if (!absl::GetFlag(FLAGS_check_times)) return absl::OkStatus();
  if (beside.Quantile(0.99) > kMostP99Ratio * alone.Quantile(0.99)) return absl::InternalError("the p99 is too large");
  if (beside.answered_part() < kLeastAnswered) return absl::InternalError("too few calls were answered");
  return absl::OkStatus();
}

absl::Status RunSoak(const std::string& folder, const std::string& self) {
  const std::string program = absl::GetFlag(FLAGS_server);
  const double seconds = absl::GetFlag(FLAGS_seconds);
  const std::string socket = StrCat("unix:", folder, "/socket");
  const std::string begin_file = folder + "/begin";
  const std::string hostile_log = folder + "/hostile.log";
  const Limits limits;
  std::filesystem::create_directory(folder + "/disk");
  std::vector<std::string> undisturbed_flags = absl::GetFlag(FLAGS_server_flags);
  std::vector<std::string> flags = undisturbed_flags;
  undisturbed_flags.push_back("--device-state-bytes=256MiB");
  for (std::string& flag : limits.Flags()) flags.push_back(std::move(flag));
  flags.push_back(StrCat("--disk-dir=", folder, "/disk"));
  flags.push_back("--disk-high-watermark=100");  // however full this disk is
  flags.push_back(StrCat("--listen=", socket));
  flags.push_back(StrCat("--trace-calls=", absl::GetFlag(FLAGS_trace_calls)));
  flags.push_back(StrCat("--max-connections-per-peer=", kMostHostileConnections));
  SleepingRedis redis;
  flags.push_back(StrCat("--redis=", redis.endpoint()));

  // All processes before any connection is made.
  const std::string machine = MachineName();
  const Shares shares = ShareProcessors();
  GDN_RETURN_IF_ERROR(ThisThreadRunsOn(shares.server));
  RestartableServer undisturbed(program, undisturbed_flags, folder, "undisturbed");
  GDN_RETURN_IF_ERROR(undisturbed.Start());
  RestartableServer server(program, flags, folder, "server");
  GDN_RETURN_IF_ERROR(server.Start());
  GDN_RETURN_IF_ERROR(ThisThreadRunsOn(shares.hostile));
  GDN_ASSIGN_OR_RETURN(
      ChildProcess hostile,
      ChildProcess::Start({self, StrCat("--hostile_to=", server.target()), StrCat("--begin_file=", begin_file),
                           StrCat("--seconds=", seconds), StrCat("--patience=", absl::GetFlag(FLAGS_patience)),
                           StrCat("--kinds=", absl::StrJoin(absl::GetFlag(FLAGS_kinds), ",")),
                           StrCat("--without=", redis.endpoint().empty() ? kSleepingStore : "")},
                          hostile_log));
  GDN_RETURN_IF_ERROR(ThisThreadRunsOn(shares.well_behaved));
  GDN_ASSIGN_OR_RETURN(const ProcessFigures at_rest, ReadProcess(server.pid()));
  GDN_ASSIGN_OR_RETURN(const StepFeed feed, LearnFeed(undisturbed.target()));
  undisturbed.Kill();

  const double rate = absl::GetFlag(FLAGS_calls_per_s);
  WellBehaved first(&feed, socket, {.name = "alone", .calls_per_s = rate});
  GDN_RETURN_IF_ERROR(first.Create());
  const absl::Time end = absl::Now() + absl::Seconds(seconds);
  TraceCollector first_traces(socket, "Bearer alone");
  const LoadFigures alone = first.Run([&] { return absl::Now() < end; });
  first_traces.Stop();  // before the next load

  WellBehaved second(&feed, socket, {.name = "beside", .calls_per_s = rate});
  GDN_RETURN_IF_ERROR(second.Create());
  std::ofstream(begin_file) << "begin";
  redis.Begin();
  TraceCollector second_traces(socket, "Bearer beside");
  std::atomic<bool> goes_on = true;
  LoadFigures beside;
  std::thread load([&] { beside = second.Run([&] { return goes_on.load(); }); });
  const int hostile_code = hostile.Wait();
  redis.End();
  goes_on = false;
  load.join();
  second_traces.Stop();

  GDN_ASSIGN_OR_RETURN(const ProcessFigures after, ReadProcess(server.pid()));
  const int64_t limit = at_rest.resident_bytes + limits.sum();
  absl::PrintF(
      "neighbour_soak on %s; the server runs on %d, the hostile client on %d%s, the well-behaved one on %d%s\n",
      machine, shares.server.size(), shares.hostile.size(), shares.hostile == shares.server ? " (the same)" : "",
      shares.well_behaved.size(), shares.well_behaved == shares.hostile ? " (the same)" : "");
  Print("alone", alone);
  PrintSlowest(alone, first_traces.Stop());
  Print("beside", beside);
  PrintSlowest(beside, second_traces.Stop());
  absl::PrintF("  p99 beside / alone %.2f (goal: at most %.0f), answered / offered %.4f (goal: at least %.1f)\n",
               beside.Quantile(0.99) / alone.Quantile(0.99), kMostP99Ratio, beside.answered_part(), kLeastAnswered);
  absl::PrintF("  server: peak %.1f MiB, limit %.1f MiB (%.1f at rest, %.1f by its flags, %.1f kept of ended calls)\n",
               static_cast<double>(after.peak_resident_bytes) / kMiB, static_cast<double>(limit) / kMiB,
               static_cast<double>(at_rest.resident_bytes) / kMiB,
               static_cast<double>(limits.sum() - limits.kept) / kMiB, static_cast<double>(limits.kept) / kMiB);
  std::cout << "the hostile one was answered:\n" << Text(hostile_log) << std::flush;
  return Judge(alone, beside, after.peak_resident_bytes, limit, hostile_code);
}

}  // namespace
}  // namespace gdn

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  if (!absl::GetFlag(FLAGS_hostile_to).empty()) {
    const absl::Status status = gdn::BeHostile();
    if (!status.ok()) std::cerr << status << "\n";
    return status.ok() ? 0 : 1;
  }
  return gdn::RunInFolder("neighbour_soak", [&](const std::string& folder) { return gdn::RunSoak(folder, argv[0]); });
}
