#include "tools/gdn_bench/rpc_bench.h"

#include <algorithm>
#include <barrier>
#include <cstdio>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/temporary_folder.h"
#include "tools/gdn_bench/kernel_case.h"
#include "tools/gdn_bench/rpc_setup.h"
#include "tools/gdn_bench/statistics.h"

namespace gdn::bench {
namespace {

constexpr int kMostCalls = 1'000'000;
constexpr int kMostConcurrency = 64;
constexpr int kCallsPerBlock = 20;  // of a worker: short, so that both servers meet the same machine
constexpr int kWarmUpBlocks = 5;
constexpr char kModel[] = "synthetic";

absl::Status Validate(const RpcBenchOptions& o) {
  GDN_RETURN_IF_ERROR(CheckRange("sessions", o.sessions, 1, 1024));
  GDN_RETURN_IF_ERROR(CheckRange("tokens", o.tokens, 1, 64));
  GDN_RETURN_IF_ERROR(CheckRange("hidden", o.hidden, 1, kMaxHiddenSize));
  GDN_RETURN_IF_ERROR(CheckRange("calls", o.calls, 1, kMostCalls));
  GDN_RETURN_IF_ERROR(CheckRange("time_limit", o.time_limit_s, 0.1, 600));
  if (o.concurrency.empty()) return absl::InvalidArgumentError("--concurrency names no number of workers; try 1,4");
  for (const int c : o.concurrency) GDN_RETURN_IF_ERROR(CheckRange("concurrency", c, 1, kMostConcurrency));
  return absl::OkStatus();
}

v1::DecodeRequest MakeRequest(const RpcBenchOptions& o, int concurrency, int worker) {
  v1::DecodeRequest request;
  for (int i = 0; i < o.sessions; ++i)
    request.add_sessions(absl::StrCat("sessions/bench-", concurrency, "-", worker, "-", i));
  *request.mutable_hidden_states()->mutable_hidden_states() =
      RandomTensor({o.sessions, o.tokens, o.hidden}, -1, 1, o.dtype);
  return request;
}

absl::Status CreateSessions(Client& client, const v1::DecodeRequest& request) {
  for (const std::string& name : request.sessions()) {
    v1::CreateSessionRequest create;
    create.set_session_id(name.substr(name.find('/') + 1));
    create.set_model(absl::StrCat("models/", kModel));
    create.set_affinity(absl::StrCat("worker-of-", request.sessions(0)));
    GDN_RETURN_IF_ERROR(WithPrefix(client.CreateSession(create).status(), "CreateSession"));
  }
  return absl::OkStatus();
}

absl::Status DeleteSessions(Client& client, const v1::DecodeRequest& request) {
  for (const std::string& name : request.sessions()) {
    GDN_RETURN_IF_ERROR(WithPrefix(client.DeleteSession(name), "DeleteSession"));
  }
  return absl::OkStatus();
}

struct LoadBlock {
  std::vector<double> latencies_s;  // of every call
  double seconds = 0;               // from the first call's start to the last one's end
};

// Closed-loop load on one server: workers that each send the next Decode when the last has been answered.
class RpcLoad {
 public:
  // One worker a request. With `request_ids`, each call carries a new one.
  RpcLoad(const std::string& target, const std::vector<v1::DecodeRequest>& requests, bool request_ids)
      : request_ids_(request_ids) {
    for (const v1::DecodeRequest& request : requests) {
      workers_.push_back({.client = ConnectAlone(target), .request = request});
    }
  }

  // The first error of any call, or INTERNAL where an output has other bytes than the input.
  absl::StatusOr<LoadBlock> RunBlock(int calls_per_worker) {
    std::barrier ready(static_cast<std::ptrdiff_t>(workers_.size()));
    std::vector<std::thread> threads;
    for (Worker& worker : workers_) {
      threads.emplace_back([this, &worker, &ready, calls_per_worker] {
        ready.arrive_and_wait();
        worker.start_s = NowSeconds();
        worker.status = RunCalls(worker, calls_per_worker);
        worker.end_s = NowSeconds();
      });
    }
    for (std::thread& thread : threads) thread.join();
    LoadBlock block;
    for (const Worker& worker : workers_) {
      GDN_RETURN_IF_ERROR(worker.status);
      block.latencies_s.insert(block.latencies_s.end(), worker.latencies_s.begin(), worker.latencies_s.end());
    }
    block.seconds = std::ranges::max_element(workers_, {}, &Worker::end_s)->end_s -
                    std::ranges::min_element(workers_, {}, &Worker::start_s)->start_s;
    return block;
  }

  int64_t response_bytes() const { return workers_[0].response_bytes; }

 private:
  struct Worker {
    std::unique_ptr<Client> client;
    v1::DecodeRequest request;
    int64_t calls = 0;
    int64_t response_bytes = 0;
    std::vector<double> latencies_s = {};
    double start_s = 0;
    double end_s = 0;
    absl::Status status = {};
  };

  absl::Status RunCalls(Worker& worker, int calls) const {
    worker.latencies_s.clear();
    const size_t expected_bytes = worker.request.hidden_states().hidden_states().data().size();
    worker.latencies_s.reserve(static_cast<size_t>(calls));
    for (int call = 0; call < calls; ++call) {
      ++worker.calls;
      if (request_ids_) worker.request.set_request_id(absl::StrCat("call-", worker.calls));
      const double start = NowSeconds();
      absl::StatusOr<v1::DecodeResponse> response = worker.client->Decode(worker.request);
      worker.latencies_s.push_back(NowSeconds() - start);
      GDN_RETURN_IF_ERROR(response.status());
      if (response->output().data().size() != expected_bytes) {
        return absl::InternalError(absl::StrCat("a Decode of ", expected_bytes, " bytes was answered with ",
                                                response->output().data().size()));
      }
      worker.response_bytes = static_cast<int64_t>(response->ByteSizeLong());
    }
    return absl::OkStatus();
  }

  std::vector<Worker> workers_;
  const bool request_ids_;
};

struct SideSamples {
  std::vector<double> latencies_s;
  std::vector<double> block_p50_s;
  std::vector<double> block_calls_per_s;

  void Add(const LoadBlock& block) {
    latencies_s.insert(latencies_s.end(), block.latencies_s.begin(), block.latencies_s.end());
    block_p50_s.push_back(Percentile(block.latencies_s, 0.5));
    block_calls_per_s.push_back(static_cast<double>(block.latencies_s.size()) / block.seconds);
  }

  SideResult Result() const {
    return {.latencies = SummarizeLatencies(latencies_s), .calls_per_s = Summarize(block_calls_per_s)};
  }
};

absl::StatusOr<RpcResult> MeasureConcurrency(const RpcBenchOptions& o, const Targets& targets, int concurrency,
                                             RpcReport& report) {
  std::vector<v1::DecodeRequest> requests;
  for (int worker = 0; worker < concurrency; ++worker) requests.push_back(MakeRequest(o, concurrency, worker));
  report.request_bytes = static_cast<int64_t>(requests[0].ByteSizeLong());
  const std::unique_ptr<Client> control = ConnectAlone(targets.gdn);
  for (const v1::DecodeRequest& request : requests) GDN_RETURN_IF_ERROR(CreateSessions(*control, request));

  RpcLoad gdn(targets.gdn, requests, o.request_ids);
  RpcLoad echo(targets.echo, requests, o.request_ids);
  for (int block = 0; block < kWarmUpBlocks; ++block) {
    GDN_RETURN_IF_ERROR(gdn.RunBlock(kCallsPerBlock).status());
    GDN_RETURN_IF_ERROR(echo.RunBlock(kCallsPerBlock).status());
  }
  const int calls_per_worker = std::max(1, o.calls / concurrency);
  const int block_calls = std::min(kCallsPerBlock, calls_per_worker);
  const int rounds = std::max(1, calls_per_worker / block_calls);
  const double deadline = NowSeconds() + o.time_limit_s;
  SideSamples gdn_samples;
  SideSamples echo_samples;
  for (int round = 0; round < rounds && (round == 0 || NowSeconds() < deadline); ++round) {
    for (const bool take_gdn : {round % 2 == 0, round % 2 != 0}) {
      GDN_ASSIGN_OR_RETURN(const LoadBlock block, (take_gdn ? gdn : echo).RunBlock(block_calls));
      (take_gdn ? gdn_samples : echo_samples).Add(block);
    }
  }
  report.response_bytes = gdn.response_bytes();
  for (const v1::DecodeRequest& request : requests) GDN_RETURN_IF_ERROR(DeleteSessions(*control, request));

  RpcResult result;
  result.concurrency = concurrency;
  result.gdn = gdn_samples.Result();
  result.echo = echo_samples.Result();
  result.p50_ratio = SummarizeRatios(gdn_samples.block_p50_s, echo_samples.block_p50_s);
  result.p99_ratio = result.gdn.latencies.p99_s / result.echo.latencies.p99_s;
  result.calls_per_s_ratio = SummarizeRatios(gdn_samples.block_calls_per_s, echo_samples.block_calls_per_s);
  return result;
}

}  // namespace

absl::StatusOr<RpcReport> RunRpcBench(const RpcBenchOptions& options) {
  GDN_RETURN_IF_ERROR(Validate(options));
  LayerDims dims = BenchLayerDims();
  dims.hidden_size = options.hidden;
  GDN_ASSIGN_OR_RETURN(const TemporaryFolder folder, TemporaryFolder::Make());
  GDN_RETURN_IF_ERROR(WriteSyntheticCheckpoint(dims, folder.path()));

  GDN_ASSIGN_OR_RETURN(
      const ServerPair servers,
      StartServers(options.server, {absl::StrCat("--model=", kModel, "=", folder.path()), "--backend=null"},
                   options.self, folder.path()));
  RpcReport report{.options = options, .request_bytes = 0, .response_bytes = 0, .results = {}};
  for (const int concurrency : options.concurrency) {
    std::fprintf(stderr, "concurrency %d: %d calls to each server\n", concurrency, options.calls);
    GDN_ASSIGN_OR_RETURN(const RpcResult result, MeasureConcurrency(options, servers.targets, concurrency, report));
    report.results.push_back(result);
  }
  return report;
}

}  // namespace gdn::bench
