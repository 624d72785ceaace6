#include "tools/gdn_bench/serve/serve_neighbour.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "client/cpp/rpc_status.h"
#include "grpcpp/client_context.h"
#include "tools/gdn_bench/serve/rpc_setup.h"

namespace gdn::bench {
namespace {

constexpr int kMessageTokens = 4096;  // 16 MiB of BF16 at a hidden size of 2048

}  // namespace

Neighbour::Neighbour(std::shared_ptr<grpc::Channel> channel, std::string session, const NeighbourLoad& load)
    : channel_(std::move(channel)), session_(std::move(session)), load_(load), thread_([this] { Run(); }) {}

absl::Status Neighbour::AwaitFirstReply() {
  first_reply_.WaitForNotification();
  return tokens_ > 0 ? absl::OkStatus() : Stop();
}

absl::Status Neighbour::Stop() {
  stop_ = true;
  if (thread_.joinable()) thread_.join();
  return status_;
}

void Neighbour::Run() {
  v1::StreamPrefillRequest message;
  message.mutable_segment()->set_session(session_);
  *message.mutable_segment()->mutable_hidden_states()->mutable_hidden_states() =
      RandomTensor({std::min(load_.tokens, kMessageTokens), load_.hidden}, -1, 1, load_.dtype);
  while (!stop_ && status_.ok()) status_ = RunPrompt(message);
  if (!first_reply_.HasBeenNotified()) first_reply_.Notify();
}

// Writes from a thread of its own, so that the server always has the next message.
absl::Status Neighbour::RunPrompt(const v1::StreamPrefillRequest& message) {
  const int message_tokens = std::min(load_.tokens, kMessageTokens);
  const auto stub = v1::GdnService::NewStub(channel_);
  grpc::ClientContext context;
  const auto stream = stub->StreamPrefill(&context);
  std::thread writer([&] {
    for (int sent = 0; sent < load_.tokens && !stop_; sent += message_tokens) {
      if (!stream->Write(message)) break;
    }
    stream->WritesDone();
  });
  v1::StreamPrefillResponse response;
  absl::Status failed;
  while (stream->Read(&response)) {
    if (failed.ok()) failed = StatusFromRpc(response.status());
    if (!failed.ok()) continue;  // what follows a failed segment is refused
    tokens_ += message_tokens;
    if (!first_reply_.HasBeenNotified()) first_reply_.Notify();
  }
  writer.join();
  const absl::Status ended = StatusFromGrpc(stream->Finish());
  return failed.ok() ? ended : failed;
}

}  // namespace gdn::bench
