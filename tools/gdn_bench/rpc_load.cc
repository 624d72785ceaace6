#include "tools/gdn_bench/rpc_load.h"

#include <algorithm>
#include <barrier>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"
#include "tools/gdn_bench/clock.h"

namespace gdn::bench {
namespace {

constexpr absl::Duration kCallTimeout = absl::Seconds(10);

}  // namespace

std::unique_ptr<Client> ConnectAlone(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  auto channel = grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
  ClientOptions options;
  options.default_timeout = kCallTimeout;
  return std::make_unique<Client>(channel, options);
}

RpcLoad::RpcLoad(const std::string& target, std::vector<v1::DecodeRequest> requests, bool request_ids)
    : request_ids_(request_ids) {
  for (v1::DecodeRequest& request : requests) {
    Worker& worker = workers_.emplace_back();
    worker.client = ConnectAlone(target);
    worker.request = std::move(request);
  }
}

absl::Status RpcLoad::RunCalls(Worker& worker, int calls) const {
  worker.latencies_s.clear();
  worker.latencies_s.reserve(static_cast<size_t>(calls));
  const size_t expected_bytes = worker.request.hidden_states().hidden_states().data().size();
  for (int call = 0; call < calls; ++call) {
    ++worker.calls;
    if (request_ids_) worker.request.set_request_id(absl::StrCat("call-", worker.calls));
    const double start = NowSeconds();
    absl::StatusOr<v1::DecodeResponse> response = worker.client->Decode(worker.request);
    worker.latencies_s.push_back(NowSeconds() - start);
    GDN_RETURN_IF_ERROR(response.status());
    if (response->output().data().size() != expected_bytes) {
      return absl::InternalError(
          absl::StrCat("a Decode of ", expected_bytes, " bytes was answered with ", response->output().data().size()));
    }
    worker.response_bytes = static_cast<int64_t>(response->ByteSizeLong());
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadBlock> RpcLoad::RunBlock(int calls_per_worker) {
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
  double start = workers_[0].start_s;
  double end = workers_[0].end_s;
  for (const Worker& worker : workers_) {
    GDN_RETURN_IF_ERROR(worker.status);
    start = std::min(start, worker.start_s);
    end = std::max(end, worker.end_s);
    block.latencies_s.insert(block.latencies_s.end(), worker.latencies_s.begin(), worker.latencies_s.end());
  }
  block.seconds = end - start;
  return block;
}

}  // namespace gdn::bench
