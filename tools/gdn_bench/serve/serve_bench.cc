#include "tools/gdn_bench/serve/serve_bench.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/files/temporary_folder.h"
#include "base/status_macros.h"
#include "tools/gdn_bench/serve/credentials.h"
#include "tools/gdn_bench/serve/serve_kernels.h"
#include "tools/gdn_bench/serve/serve_load.h"
#include "tools/gdn_bench/serve/serve_neighbour.h"
#include "tools/gdn_bench/serve/wake_echo.h"
#include "tools/gdn_bench/synthetic_checkpoint.h"

namespace gdn::bench {
namespace {

constexpr int kMostCalls = 10'000'000;
constexpr int kMostClients = 256;
constexpr int kMostInFlight = 1024;
constexpr int kWarmUpRounds = 2;
// Short, so that all servers meet the same machine, but long enough for several calls of each client.
constexpr double kBlockSeconds = 0.03;
constexpr double kMostBlockSeconds = 2;
constexpr double kBesideBlockSeconds = 0.3;  // some segments of the prefill at the least
constexpr double kOpenBlockSeconds = 0.25;
constexpr int kCallsPerBlock = 8;  // of a client
constexpr int kLeastRounds = 7;    // a median of fewer says little; but no more than calls
constexpr char kModel[] = "synthetic";

absl::Status Validate(const ServeOptions& o) {
  const bool decode = o.load.call == CallKind::kDecode;
  GDN_RETURN_IF_ERROR(CheckRange("sessions", o.load.sessions, 1, 512));
  GDN_RETURN_IF_ERROR(CheckRange("tokens", o.load.tokens, 1, decode ? 64 : 8192));
  GDN_RETURN_IF_ERROR(CheckRange("hidden", o.load.hidden, 1, kMaxHiddenSize));
  GDN_RETURN_IF_ERROR(CheckRange("model_layers", o.load.layers, 1, 128));
  GDN_RETURN_IF_ERROR(CheckRange("calls", o.calls, 1, kMostCalls));
  GDN_RETURN_IF_ERROR(CheckRange("time_limit", o.time_limit_s, 0.1, 600));
  GDN_RETURN_IF_ERROR(CheckRange("rate", o.rate, 0, 1e6));
  GDN_RETURN_IF_ERROR(CheckRange("in_flight", o.in_flight, 1, kMostInFlight));
  GDN_RETURN_IF_ERROR(CheckRange("beside", o.beside_tokens, 0, 1 << 20));
  if (!o.suite.empty() && (o.rate > 0 || o.beside_tokens > 0)) {
    return absl::InvalidArgumentError("--suite has loads of its own: leave --rate and --beside away");
  }
  if ((o.suite == "devices") != !o.gpu_devices.empty()) {
    return absl::InvalidArgumentError(
        "--suite=devices compares servers on one and on several devices: name these by "
        "--gpu-devices=0,1, and with no other suite");
  }
  if ((o.suite == "secure") != !o.secure.empty() || (!o.secure.empty() && o.transport != Transport::kTcp)) {
    return absl::InvalidArgumentError("--suite=secure needs --secure=DIR with credentials, and TCP");
  }
  if (o.concurrency.empty()) return absl::InvalidArgumentError("--concurrency names no number of clients; try 1,4");
  for (const int c : o.concurrency) GDN_RETURN_IF_ERROR(CheckRange("concurrency", c, 1, kMostClients));
  return absl::OkStatus();
}

// Callers of one row, and their sessions.
int CallersOf(const ServeOptions& options, const ServeRow& row) {
  return options.rate > 0 ? std::max(options.in_flight, row.clients) : row.clients;
}

// `kind`: the beginning of their ids.
std::vector<std::string> SessionsOf(const char* kind, size_t row, int caller, int count) {
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(absl::StrCat("sessions/", kind, "-", row, "-", caller, "-", i));
  return names;
}

// `device`: the flag that chooses it, or several.
std::vector<std::string> ServerFlags(const ServeOptions& options, const std::vector<ServeRow>& rows,
                                     const std::string& model, const std::string& device) {
  std::vector<std::string> flags = {absl::StrCat("--model=", kModel, "=", model),
                                    absl::StrCat("--backend=", options.backend),
                                    device,
                                    absl::StrCat("--threads=", options.threads),
                                    absl::StrCat("--ring_spin=", options.load.ring_spin_us, "us"),
                                    "--log_level=warn"};
  int64_t sessions = 0, message_bytes = int64_t{64} << 20, reply_bytes = int64_t{1} << 20;
  int64_t stored_bytes = int64_t{1} << 30;
  int tokens = 1;
  for (const ServeRow& row : rows) {
    const int callers = CallersOf(options, row);
    const int64_t sides = row.load.call == CallKind::kStep ? 2 : 1;  // with sessions of their own
    sessions = std::max<int64_t>(sessions, sides * callers * row.load.rows());
    if (row.load.call == CallKind::kDecode) tokens = std::max(tokens, row.load.tokens);
    message_bytes = std::max(message_bytes, 2 * row.load.tensor_bytes());
    if (!row.load.request_ids) continue;
    reply_bytes = std::max(reply_bytes, row.load.tensor_bytes());
    stored_bytes = std::max(stored_bytes, 2 * callers * row.load.layers * row.load.tensor_bytes());
  }
  flags.push_back(absl::StrCat("--max_draft=", std::max(8, tokens)));
  flags.push_back(absl::StrCat("--max_message_bytes=", message_bytes));
  flags.push_back(absl::StrCat("--max_stored_reply_bytes=", reply_bytes));
  flags.push_back(absl::StrCat("--stored_reply_bytes=", stored_bytes));
  if (options.backend == "gpu") {
    // Not most of the memory: the kernels' own time is measured on the same device.
    constexpr int64_t kSpareSessions = 32;
    flags.push_back(absl::StrCat("--state_slots=", (sessions + kSpareSessions) * rows.front().load.layers));
    flags.push_back("--host_state_bytes=0");
  }
  return flags;
}

// Sessions of one caller come in one call.
absl::Status CreateSession(Client& client, const std::string& name, const std::string& affinity) {
  v1::CreateSessionRequest create;
  create.set_session_id(name.substr(name.find('/') + 1));
  create.set_model(absl::StrCat("models/", kModel));
  create.set_affinity(affinity);
  return WithPrefix(client.CreateSession(create).status(), "CreateSession");
}

// One row's connections, sessions and blocks.
class RowLoad {
 public:
  RowLoad(const ServeOptions& options, const Targets& targets, const ServeRow& row, size_t index)
      : options_(options), row_(row), targets_(targets) {
    controls_.push_back(ConnectAlone(targets.gdn));
    if (row.several_devices) controls_.push_back(ConnectAlone(targets.several));
    if (row.secure) controls_.push_back(std::make_unique<Client>(NewChannel(Side::kGdnSecure, targets.gdn_secure)));
    const int callers = CallersOf(options, row);
    const bool step = row.load.call == CallKind::kStep;
    for (int i = 0; i < callers; ++i) sessions_.push_back(SessionsOf("bench", index, i, row.load.rows()));
    for (int i = 0; step && i < callers; ++i) {
      separate_sessions_.push_back(SessionsOf("bench-separate", index, i, row.load.rows()));
    }
    AddSide(Side::kGdn, targets.gdn, Wire::kMessages);
    // A step is compared with other calls of the same server alone.
    if (step) AddSide(Side::kGdnSeparate, targets.gdn, Wire::kSeparateCalls);
    if (options.echo && !step) AddSide(Side::kEcho, targets.echo, Wire::kMessages);
    if (options.raw_echo && !step) AddSide(Side::kRawEcho, targets.raw_echo, Wire::kBytes);
    if (options.queue_echo && !step) {
      AddSide(Side::kQueueEcho, targets.queue_echo, Wire::kBytes);
      AddSide(Side::kQueuesEcho, targets.queues_echo, Wire::kBytes);
    }
    if (row.shared_memory) AddSide(Side::kGdnShared, targets.gdn_socket, Wire::kSharedMemory);
    if (row.ring) AddSide(Side::kGdnRing, targets.gdn, Wire::kRing);
    if (row.wake_echo()) {
      order_.push_back(Side::kWakeEcho);
      callers_[Side::kWakeEcho].push_back(MakeWakeCaller(*targets.wake_echo));
    }
    if (row.secure) {
      AddSide(Side::kGdnSecure, targets.gdn_secure, Wire::kMessages);
      AddSide(Side::kEchoSecure, targets.echo_secure, Wire::kMessages);
    }
    if (row.several_devices) AddSide(Side::kGdnSeveral, targets.several, Wire::kSharedMemory);
    if (row.beside_tokens > 0) order_.push_back(Side::kGdnBeside);
    block_s_ = options.rate > 0 ? kOpenBlockSeconds : kBlockSeconds;
  }

  absl::Status CreateSessions() {
    for (const auto& control : controls_) {
      for (const auto* sessions : {&sessions_, &separate_sessions_}) {
        for (const auto& names : *sessions) {
          for (const std::string& name : names) GDN_RETURN_IF_ERROR(CreateSession(*control, name, names.front()));
        }
      }
    }
    return row_.beside_tokens > 0 ? CreateSession(*controls_.front(), kNeighbour, "") : absl::OkStatus();
  }

  absl::Status DeleteSessions() {
    for (const auto& control : controls_) {
      for (const auto* sessions : {&sessions_, &separate_sessions_}) {
        for (const auto& names : *sessions) {
          for (const std::string& name : names) {
            GDN_RETURN_IF_ERROR(WithPrefix(control->DeleteSession(name), "DeleteSession"));
          }
        }
      }
    }
    return row_.beside_tokens > 0 ? controls_.front()->DeleteSession(kNeighbour) : absl::OkStatus();
  }

  // Alternates between the servers until each has had its calls or the time is over.
  absl::Status Measure(std::map<Side, SideResult>& results) {
    double call_s = 0;  // of the slowest side, in the last round: the first holds connecting
    for (int round = 0; round < kWarmUpRounds; ++round) {
      call_s = 0;
      for (const Side side : order_) {
        GDN_ASSIGN_OR_RETURN(const LoadBlock block, RunBlock(side));
        call_s = std::max(call_s, Percentile(block.latencies_s, 0.5));
      }
    }
    if (options_.rate == 0) block_s_ = std::clamp(kCallsPerBlock * call_s, block_s_, kMostBlockSeconds);
    const double deadline = NowSeconds() + options_.time_limit_s;
    int64_t fewest = 0;
    const auto least_rounds = static_cast<size_t>(std::min(kLeastRounds, options_.calls));
    for (size_t round = 0; fewest < options_.calls || round < least_rounds; ++round) {
      if (round > 0 && NowSeconds() > deadline) break;
      fewest = options_.calls;
      for (size_t i = 0; i < order_.size(); ++i) {
        const Side side = order_[(i + round) % order_.size()];
        GDN_ASSIGN_OR_RETURN(const LoadBlock block, RunBlock(side));
        results[side].Add(block);
        fewest = std::min(fewest, results[side].latencies.count());
      }
    }
    return absl::OkStatus();
  }

  int64_t request_bytes() const { return callers_.at(Side::kGdn).front()->request_bytes(); }
  int64_t response_bytes() const { return callers_.at(Side::kGdn).front()->response_bytes(); }

 private:
  std::shared_ptr<grpc::Channel> NewChannel(Side side, const std::string& target) const {
    if (side != Side::kGdnSecure && side != Side::kEchoSecure) return ChannelAlone(target);
    // RunServeBench has made one by these files.
    return SecureChannelAlone(target, options_.secure, /*with_token=*/side == Side::kGdnSecure).value();
  }

  void AddSide(Side side, const std::string& target, Wire wire) {
    order_.push_back(side);
    std::vector<std::shared_ptr<grpc::Channel>> channels;
    for (int i = 0; i < row_.clients; ++i) channels.push_back(NewChannel(side, target));
    Callers& callers = callers_[side];
    const auto& sessions = wire == Wire::kSeparateCalls ? separate_sessions_ : sessions_;
    for (size_t i = 0; i < sessions.size(); ++i) {
      callers.push_back(MakeCaller(channels[i % channels.size()], row_.load, sessions[i], wire));
    }
  }

  absl::StatusOr<LoadBlock> RunBlock(Side side) {
    if (side != Side::kGdnBeside) return RunCalls(callers_.at(side), block_s_);
    const NeighbourLoad beside{.tokens = row_.beside_tokens, .hidden = row_.load.hidden, .dtype = row_.load.dtype};
    absl::StatusOr<NeighbourProcess> neighbour =
        NeighbourProcess::Start(options_.self, targets_.folder, targets_.gdn, beside);
    GDN_RETURN_IF_ERROR(WithPrefix(neighbour.status(), "the prefill beside the load"));
    absl::StatusOr<LoadBlock> block = RunCalls(callers_.at(Side::kGdn), std::max(block_s_, kBesideBlockSeconds));
    GDN_RETURN_IF_ERROR(WithPrefix(neighbour->Stop(), "the prefill beside the load"));
    return block;
  }

  absl::StatusOr<LoadBlock> RunCalls(const Callers& callers, double seconds) {
    if (options_.rate == 0) return RunClosedBlock(callers, seconds);
    const auto calls = std::max<int64_t>(1, static_cast<int64_t>(options_.rate * seconds));
    return RunOpenBlock(callers, ArrivalTimes(options_.arrivals, options_.rate, calls, ++seed_));
  }

  const ServeOptions& options_;
  const ServeRow& row_;
  const Targets& targets_;
  std::vector<std::unique_ptr<Client>> controls_;            // of the servers
  std::vector<std::vector<std::string>> sessions_;           // of each caller
  std::vector<std::vector<std::string>> separate_sessions_;  // of each caller that makes the separate calls of a Step
  std::vector<Side> order_;
  std::map<Side, Callers> callers_;
  double block_s_ = kBlockSeconds;
  uint64_t seed_ = 0;
};

// The processors that this process may use: one of them, and the others.
struct ProcessorsApart {
  cpu_set_t clients, servers;

  static absl::StatusOr<ProcessorsApart> Choose() {
    ProcessorsApart made;
    CPU_ZERO(&made.clients);
    if (sched_getaffinity(/*pid=*/0, sizeof(made.servers), &made.servers) != 0 || CPU_COUNT(&made.servers) < 2) {
      return absl::FailedPreconditionError("--apart needs two processors that this program may use, and CPU sets");
    }
    int first = 0;
    while (!CPU_ISSET(first, &made.servers)) ++first;
    CPU_CLR(first, &made.servers);
    CPU_SET(first, &made.clients);
    return made;
  }
};

// Lets this thread, and what it starts from now on, run on these processors only.
absl::Status RunOn(const cpu_set_t& processors) {
  if (sched_setaffinity(/*pid=*/0, sizeof(processors), &processors) == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("--apart: sched_setaffinity: ", std::strerror(errno)));
}

absl::StatusOr<ServeResult> MeasureRow(const ServeOptions& options, const Targets& targets, KernelTimes& kernels,
                                       const ServeRow& row, size_t index) {
  ServeResult result;
  result.row = row;
  GDN_ASSIGN_OR_RETURN(result.measured.kernels, kernels.Of(row.load, row.clients, row.beside_tokens > 0));
  result.measured.tokens_per_call = static_cast<double>(row.load.tokens_per_call());
  RowLoad load(options, targets, row, index);
  GDN_RETURN_IF_ERROR(load.CreateSessions());
  GDN_RETURN_IF_ERROR(WithPrefix(load.Measure(result.measured.sides), row.name));
  result.request_bytes = load.request_bytes();
  result.response_bytes = load.response_bytes();
  GDN_RETURN_IF_ERROR(load.DeleteSessions());
  for (const RatioGoal& goal : row.goals) {
    if (std::optional<RatioResult> ratio = Evaluate(goal, result.measured)) result.ratios.push_back(*std::move(ratio));
  }
  return result;
}

}  // namespace

absl::StatusOr<ServeReport> RunServeBench(const ServeOptions& options) {
  GDN_RETURN_IF_ERROR(Validate(options));
  GDN_ASSIGN_OR_RETURN(const std::vector<ServeRow> rows, ServeRows(options));
  ServeReport report;
  report.options = options;
  if (getloadavg(&report.load_average, 1) != 1) report.load_average = 0;
  LayerDims dims = BenchLayerDims();
  dims.hidden_size = options.load.hidden;
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  GDN_RETURN_IF_ERROR(WriteSyntheticCheckpoint(dims, options.load.layers, folder.path()));
  const ServerPairOptions pair{
      .server = options.server, .self = options.self, .folder = folder.path(), .transport = options.transport};
  const auto flags = [&](const std::string& device) { return ServerFlags(options, rows, folder.path(), device); };
  std::optional<ProcessorsApart> apart;
  if (options.apart) {
    GDN_ASSIGN_OR_RETURN(apart, ProcessorsApart::Choose());
    GDN_RETURN_IF_ERROR(RunOn(apart->servers));  // children inherit it
  }
  GDN_ASSIGN_OR_RETURN(ServerPair servers,
                       StartServers(pair, flags(absl::StrCat("--gpu_device=", options.gpu_device))));
  servers.targets.folder = folder.path();
  std::unique_ptr<WakeEcho> wake_echo;
  if (std::ranges::any_of(rows, [](const ServeRow& row) { return row.wake_echo(); })) {
    GDN_ASSIGN_OR_RETURN(wake_echo, WakeEcho::Start(options.self, folder.path() + "/wake_echo.log"));
    servers.targets.wake_echo = wake_echo.get();
  }
  if (options.queue_echo) GDN_RETURN_IF_ERROR(StartQueueEchoes(pair, servers));
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder secure_folder, TemporaryFolder::Make());
  std::optional<ServerPair> secure;
  if (!options.secure.empty()) {
    GDN_RETURN_IF_ERROR(SecureChannelAlone("localhost:1", options.secure, /*with_token=*/true).status());
    ServerPairOptions with_tls = pair;
    with_tls.folder = secure_folder.path();
    with_tls.secure = options.secure;
    GDN_ASSIGN_OR_RETURN(ServerPair made,
                         StartServers(with_tls, flags(absl::StrCat("--gpu_device=", options.gpu_device))));
    servers.targets.gdn_secure = made.targets.gdn;
    servers.targets.echo_secure = made.targets.echo;
    secure.emplace(std::move(made));
  }
  if (!options.gpu_devices.empty()) {
    GDN_RETURN_IF_ERROR(StartSeveral(pair, flags(absl::StrCat("--gpu_devices=", options.gpu_devices)), servers));
  }
  if (apart.has_value()) GDN_RETURN_IF_ERROR(RunOn(apart->clients));
  GDN_ASSIGN_OR_RETURN(const v1::GetServerInfoResponse info, ConnectAlone(servers.targets.gdn)->GetServerInfo());
  report.backend = info.backend();
  report.device = info.device();
  report.numerics_id = info.numerics_id();
  GDN_ASSIGN_OR_RETURN(KernelTimes kernels, KernelTimes::Make(report.backend, {.gpu_device = options.gpu_device,
                                                                               .threads = options.threads}));
  for (size_t i = 0; i < rows.size(); ++i) {
    std::fprintf(stderr, "[%zu/%zu] %s\n", i + 1, rows.size(), rows[i].name.c_str());
    GDN_ASSIGN_OR_RETURN(ServeResult result, MeasureRow(options, servers.targets, kernels, rows[i], i));
    report.results.push_back(std::move(result));
  }
  return report;
}

}  // namespace gdn::bench
