// A server in the calling process, for tests of programs that use the client.
//
// It answers by the API's rules for sessions, ids, epochs, token counts, drafts, stored replies, checkpoints, state
// files and streams, and it fails as a test has planned. It does not compute Gated DeltaNet: its one model "models/toy"
// has hidden size 4 and, of 3 layers, the GDN layers 0 and 2; layer L makes of hidden states x the sums
// y_t = (L + 1) * (x_0 + .. + x_t), element by element, so that expected outputs are easily written down. Other inputs
// than hidden states are refused; methods that have to do with none of these may answer UNIMPLEMENTED. For real
// outputs, start a gdn_server: it needs no GPU.
// Thread safety: all methods may be called from any thread. Ownership: owns the server; clients must not outlive it.
//
//   FakeServer server;
//   auto client = server.Connect();
//   server.RefuseNext("Decode", MakeError(absl::StatusCode::kResourceExhausted, reason::kQueueFull, "try later"));
//   EXPECT_TRUE(MyEngine(*client).TakesItsTime());
//   EXPECT_EQ(server.token_count("sessions/a", 0), 12);
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/cpp/client.h"

namespace gdn {

class FakeServer {
 public:
  struct Options {
    // A session's state is durable after so many tokens of a layer, as with --checkpoint-every-tokens; 0: only by
    // CheckpointSession. A crash takes what is not durable.
    int64_t checkpoint_every_tokens = 0;
    bool durable_tier = true;  // false: CheckpointSession is refused, as without --disk-dir
  };
  // What becomes of a step.
  enum class Fault {
    kUnavailable,  // UNAVAILABLE, and nothing has moved
    kLoseReply,    // UNAVAILABLE, and the step is done: a retry under its request_id gets the stored reply
    kDropReply,    // as kLoseReply, and a retry is told REPLY_DROPPED
    kCrashBefore,  // UNAVAILABLE; the server has crashed before the step, and is back
    kCrashAfter,   // UNAVAILABLE; the server has crashed after the step, and is back
    kLoseState,    // DATA_LOSS; the step has failed halfway, and so have all sessions lost their states: all but
                   // GetSession, DeleteSession and RestoreCheckpoint answers STATE_ROLLED_BACK if the session has a
                   // checkpoint, else STATE_LOST
  };

  FakeServer();
  explicit FakeServer(Options options);
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer();

  // "127.0.0.1:PORT", for programs that connect by themselves.
  const std::string& target() const;
  // A client of this server.
  std::unique_ptr<Client> Connect(ClientOptions options = {}) const;

  // Of the step-th call of Prefill, Decode, AcceptTokens or message of a stream from now on, counted from 0, retries
  // and replays included.
  void FailStep(int step, Fault fault);
  // The next call of `method` ("Prefill", "StreamPrefill", "Decode", "StreamDecode", "AcceptTokens", "CreateSession",
  // "GetSession", "DeleteSession", "CheckpointSession", "RestoreCheckpoint"; of a stream, its next message) answers
  // `status`, whose reason and metadata reach the client, and nothing moves. Several take effect in their order.
  void RefuseNext(const std::string& method, const absl::Status& status);
  // Sessions come back from their newest checkpoints, in a new epoch; those without one are gone.
  void Crash();

  // Tokens that a layer has seen; -1 without such a session or layer.
  int64_t token_count(const std::string& session, int32_t layer) const;
  // Prefill, Decode, AcceptTokens and messages of streams so far; those of RefuseNext are not counted.
  int steps() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace gdn
