#include "tools/gdn_bench/serve/serve_neighbour.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "client/cpp/rpc_status.h"
#include "grpcpp/client_context.h"
#include "tools/gdn_bench/serve/rpc_setup.h"

namespace gdn::bench {
namespace {

constexpr int kMessageTokens = 4096;  // 16 MiB of BF16 at a hidden size of 2048

// Prefills one prompt; its last messages are not sent if `stop` becomes true. Calls `replied` for each reply.
template <typename Replied>
absl::Status RunPrompt(v1::GdnService::Stub& stub, const v1::StreamPrefillRequest& message, int messages,
                       const std::atomic<bool>& stop, const Replied& replied) {
  grpc::ClientContext context;
  const auto stream = stub.StreamPrefill(&context);
  // Writes from a thread of its own, so that the server always has the next message.
  std::thread writer([&] {
    for (int sent = 0; sent < messages && !stop; ++sent) {
      if (!stream->Write(message)) break;
    }
    stream->WritesDone();
  });
  v1::StreamPrefillResponse response;
  absl::Status failed;
  while (stream->Read(&response)) {
    if (failed.ok()) failed = StatusFromRpc(response.status());
    if (failed.ok()) failed = replied();  // what follows a failed segment is refused
  }
  writer.join();
  const absl::Status ended = StatusFromGrpc(stream->Finish());
  return failed.ok() ? ended : failed;
}

}  // namespace

absl::Status RunNeighbour(const std::string& target, const std::string& reply_file, const NeighbourLoad& load) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &term, nullptr);  // before there are other threads
  std::atomic<bool> stop{false};
  absl::Notification ended;
  std::thread waiter([&] {
    int signal = 0;
    sigwait(&term, &signal);
    stop = true;
    if (ended.WaitForNotificationWithTimeout(load.time_limit)) return;
    std::fputs("gdn_bench: the server does not answer what was in flight\n", stderr);
    _exit(1);
  });
  const int tokens = std::min(load.tokens, kMessageTokens);
  v1::StreamPrefillRequest message;
  message.mutable_segment()->set_session(kNeighbour);
  *message.mutable_segment()->mutable_hidden_states()->mutable_hidden_states() =
      RandomTensor({tokens, load.hidden}, -1, 1, load.dtype);
  const auto stub = v1::GdnService::NewStub(ChannelAlone(target));
  bool is_first = true;
  const auto replied = [&] { return std::exchange(is_first, false) ? WritePortFile(reply_file, 1) : absl::OkStatus(); };
  absl::Status status;
  while (!stop && status.ok()) {
    status = RunPrompt(*stub, message, (load.tokens + tokens - 1) / tokens, stop, replied);
  }
  ended.Notify();
  pthread_kill(waiter.native_handle(), SIGTERM);  // if an error ended it
  waiter.join();
  return status;
}

absl::StatusOr<NeighbourProcess> NeighbourProcess::Start(const std::string& self, const std::string& folder,
                                                         const std::string& target, const NeighbourLoad& load) {
  const std::string reply_file = folder + "/neighbour.reply";
  std::remove(reply_file.c_str());  // of the last one
  GDN_ASSIGN_OR_RETURN(
      ChildProcess child,
      ChildProcess::Start(
          {self, "neighbour", absl::StrCat("--listen=", target), absl::StrCat("--port_file=", reply_file),
           absl::StrCat("--beside=prefill:", load.tokens), absl::StrCat("--hidden=", load.hidden),
           absl::StrCat("--dtype=", std::string(DTypeName(load.dtype)))},
          folder + "/neighbour.log"));
  GDN_RETURN_IF_ERROR(child.WaitForPort(reply_file, absl::Seconds(120)).status());
  return NeighbourProcess(std::move(child));
}

absl::Status NeighbourProcess::Stop() {
  child_.Signal(SIGTERM);
  const int code = child_.Wait();
  if (code == 0) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat("a call of the process that prefills failed; it ended with ", code));
}

}  // namespace gdn::bench
