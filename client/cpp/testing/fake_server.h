// A server in the calling process, for tests of programs that use the client.
//
// It follows the API's rules for sessions, ids, epochs, token counts, drafts, stored replies, checkpoints, state
// files and streams. It fails when a test says so. It does not compute Gated DeltaNet. Its only model is
// "models/toy", with hidden size 4 and 3 layers, of which layers 0 and 2 are GDN layers. Layer L turns hidden states
// x into y_t = (L + 1) * (x_0 + .. + x_t), element by element, so expected outputs are easy to write down. It refuses
// inputs other than hidden states. Other methods may return UNIMPLEMENTED. For real outputs, start a gdn_server; it
// needs no GPU.
// Thread safety: all methods may be called from any thread. Ownership: owns the server; it must outlive its clients.
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
    // A session's state becomes durable after this many tokens of a layer, as with --checkpoint-every-tokens. 0: only
    // by CheckpointSession. A crash loses everything that is not durable.
    int64_t checkpoint_every_tokens = 0;
    bool durable_tier = true;  // false: CheckpointSession is refused, as on a server without --disk-dir
  };
  // Planned outcome of a step.
  enum class Fault {
    kUnavailable,  // UNAVAILABLE, and nothing has changed
    kLoseReply,    // UNAVAILABLE, and the step is applied: a retry under its request_id gets the stored reply
    kDropReply,    // UNAVAILABLE, and the step is applied: a retry under its request_id gets REPLY_DROPPED
    kCrashBefore,  // UNAVAILABLE; the server has crashed before the step, and is back
    kCrashAfter,   // UNAVAILABLE; the server has crashed after the step, and is back
    kLoseState,    // DATA_LOSS; the step failed halfway, and all sessions lost their states. Calls that use a state
                   // then return STATE_ROLLED_BACK if the session has a checkpoint, else STATE_LOST
  };

  FakeServer();
  explicit FakeServer(Options options);
  FakeServer(const FakeServer&) = delete;
  FakeServer& operator=(const FakeServer&) = delete;
  ~FakeServer();

  // "127.0.0.1:PORT", for programs that make their own connection.
  const std::string& target() const;
  // Makes a client of this server.
  std::unique_ptr<Client> Connect(ClientOptions options = {}) const;

  // Plans the outcome of a step. `step` counts calls of Prefill, Decode, Step and AcceptTokens and messages of streams
  // from now on, from 0, with retries and replays.
  void FailStep(int step, Fault fault);
  // Makes the next call of `method` (or the next message of a stream) return `status`, with its reason and metadata,
  // and change nothing. Methods: "Prefill", "StreamPrefill", "Decode", "StreamDecode", "Step", "StreamStep",
  // "AcceptTokens", "CreateSession", "GetSession", "DeleteSession", "ForkSession", "SnapshotSession",
  // "SnapshotSessions", "ListSnapshots", "DeleteSnapshots", "CheckpointSession", "ListCheckpoints", "DeleteCheckpoint",
  // "RestoreCheckpoint", "ExportState", "WatchState", "OpenLease", "RenewLease", "EndLease",
  // "ListLeases". Several plans take effect in order. Leases never end by time.
  void RefuseNext(const std::string& method, const absl::Status& status);
  // Restarts the server: sessions return to their newest checkpoints, in a new epoch. Sessions without one are lost,
  // and so are all snapshots.
  void Crash();
  // Evicts the snapshot with this key, as a server does whose --snapshot-bytes is full. Does nothing if there is none.
  void EvictSnapshot(const std::string& key);

  // Tokens that a layer has seen; -1 if there is no such session or layer.
  int64_t token_count(const std::string& session, int32_t layer) const;
  // Number of Prefill, Decode, Step and AcceptTokens calls and stream messages so far, without those that RefuseNext
  // refused.
  int steps() const;

 private:
  struct Parts;
  const std::unique_ptr<Parts> parts_;
};

}  // namespace gdn
