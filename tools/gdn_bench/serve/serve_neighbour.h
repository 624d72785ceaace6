// A session that prefills long prompts while other sessions are measured.
//
// Thread safety: one thread. Ownership: owns its stream and two threads, which its destructor ends.
//
//   Neighbour neighbour(ChannelAlone(target), "sessions/neighbour", {.tokens = 32768});
//   GDN_RETURN_IF_ERROR(neighbour.AwaitFirstReply());   // from here on it keeps the server busy
//   ...
//   GDN_RETURN_IF_ERROR(neighbour.Stop());
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "base/dtype.h"
#include "client/cpp/client.h"
#include "grpcpp/channel.h"

namespace gdn::bench {

struct NeighbourLoad {
  // Tokens of a prompt. Each prompt is one StreamPrefill with messages of at most 4,096 tokens.
  int tokens = 32768;
  int hidden = 2048;
  DType dtype = DType::kBF16;
};

class Neighbour {
 public:
  // Starts to prefill prompts at once, one after the other. The session must exist.
  Neighbour(std::shared_ptr<grpc::Channel> channel, std::string session, const NeighbourLoad& load);
  ~Neighbour() { Stop().IgnoreError(); }

  // Waits for the first reply. If a call fails before that, returns its error, and the neighbour has stopped.
  absl::Status AwaitFirstReply();
  // Ends the prompt after the messages that are in flight, and waits for that. Returns the first error of the
  // neighbour's calls. A later call returns the same.
  absl::Status Stop();
  // Number of tokens that the server has answered.
  int64_t tokens() const { return tokens_; }

 private:
  void Run();
  absl::Status RunPrompt(const v1::StreamPrefillRequest& message);

  const std::shared_ptr<grpc::Channel> channel_;
  const std::string session_;
  const NeighbourLoad load_;
  std::atomic<bool> stop_{false};
  std::atomic<int64_t> tokens_{0};
  absl::Notification first_reply_;  // notified at the first reply, or when the thread ends
  absl::Status status_;             // the thread's result; valid when it has ended
  std::thread thread_;
};

}  // namespace gdn::bench
