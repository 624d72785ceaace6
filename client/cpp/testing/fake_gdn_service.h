// A GdnService for tests of clients and tools; users of the package have fake_server.h, which is made of it. It serves
// the model "models/toy" with GDN layers 0 and 2 of 3 (toy_layer.h), streams and state files, and does what the API
// says of sessions, ids, epochs, counts, drafts, stored replies and checkpoints; with calls that fail, lost replies
// and crashes as a test has planned.
//
// Thread safety: as a gRPC service. Ownership: the server it runs in does not own it.
//
//   FakeGdnService service({.layers = 2, .checkpoint_every_tokens = 4});
//   const LoopbackServer server(&service);
//   service.Plan(/*call=*/3, Fault::kCrashAfter);
//   auto client = Client::Connect(server.target());
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client.h"
#include "client/cpp/testing/toy_layer.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/server.h"

namespace gdn {

inline constexpr char kToyModel[] = "models/toy";
inline constexpr int64_t kMaxStoredReplyBytes = 64 * kToyHidden * 4;  // replies of more than 64 tokens are not kept

// What becomes of a call.
enum class Fault {
  kUnavailable,  // refused, nothing moves
  kLoseReply,    // done, and the connection breaks
  kLate,         // done, and the deadline passes
  kCrashBefore,  // the server dies and comes back before it has done anything
  kCrashAfter,   // .. and after it has done the call, and made it durable where that is due
  kRefuse,       // INVALID_ARGUMENT
  kOtherBytes,   // done, with a reply whose first byte is another
  kDropReply,    // as kLoseReply, and the stored output is dropped: a retry is told REPLY_DROPPED
  kRollBack,     // SetStoreBack of all sessions to their newest checkpoints, and then the call
  kLoseState,    // LoseState of all sessions, and then the call
};

class FakeGdnService final : public v1::GdnService::Service {
 public:
  struct Options {
    // What answers are like.
    float output_error = 0;            // added to the outputs of `faulty_call`
    std::string faulty_call = {};      // "Prefill", "StreamPrefill", "Decode" or "StreamDecode"
    bool fail_stream_segment = false;  // every third message of a StreamPrefill fails by itself
    float exported_state_error = 0;    // added to every element of exported recurrent states
    bool refuse_decode = false;        // Decode answers SESSION_BUSY
    bool wrong_token_count = false;    // replies say one token too many
    bool damaged_pieces = false;       // state files come with other checksums than their bytes'
    // What sessions are like.
    int layers = 0;       // 0 .. layers - 1; 0: the toy model's
    bool traces = false;  // outputs are traces instead (see ToyState::trace), and every step has to say which
                          // epoch and token count it expects
    int64_t checkpoint_every_tokens = 0;  // of any layer; 0: only by CheckpointSession
    bool durable_tier = true;
    bool forget_stored_replies = false;  // a retry is not answered from memory
    bool save_no_outputs = false;        // checkpoints have stored replies without their outputs
    bool ignore_session_epochs = false;  // of forks, exports, checkpoints, restores and watches, as servers did that
                                         // did not know the field
  };
  explicit FakeGdnService(Options options) : options_(std::move(options)) {}
  FakeGdnService() : FakeGdnService(Options{}) {}

  // The fault of the call-th Prefill, Decode or AcceptTokens from now on, counted from 0, replays included.
  void Plan(int call, Fault fault);
  // Of the next calls of "CreateSession", "GetSession", "DeleteSession", "CheckpointSession", "RestoreCheckpoint",
  // "ForkSession" or "ExportState".
  void PlanNext(const std::string& call, std::vector<Fault> faults);
  // Of the next call of "Prefill", "StreamPrefill", "Decode", "StreamDecode", "AcceptTokens" or one of PlanNext's: this
  // answer, and nothing moves. Once for each call of this method.
  void RefuseNext(const std::string& call, grpc::Status status);
  // Sessions come back from their newest checkpoints, in a new epoch; those without one are gone.
  void Crash();
  // As if the session had rested in a store that was then set back, to this checkpoint, "" for the newest: steps are
  // refused (STATE_ROLLED_BACK) until RestoreCheckpoint. Without one of this id the store has nothing of it any more.
  void SetStoreBack(const std::string& session, const std::string& checkpoint_id);
  // As if a step had failed after it had begun to change the session's state: all but GetSession, DeleteSession and
  // RestoreCheckpoint is refused, with STATE_ROLLED_BACK if there is a checkpoint, else with STATE_LOST.
  void LoseState(const std::string& session);
  void SetNumerics(const std::string& numerics_id);
  // As if another client had done it.
  void MoveLayer(const std::string& session, int32_t layer, int64_t tokens);

  // What the states of a session are: equal texts are equal states, counts and drafts.
  std::string States(const std::string& session) const;
  std::set<std::string> session_names() const;
  // Tokens that a layer has seen; -1 without such a session.
  int64_t token_count(const std::string& session, int32_t layer) const;
  // What has been asked for so far.
  struct Log {
    int steps = 0;  // Prefill, Decode and AcceptTokens
    int sessions_created = 0;
    std::set<std::string> checked_calls;     // names of the calls that came with an expected token count
    std::set<std::string> identified_calls;  // .. and with a request_id
    std::vector<std::string> prefetched;
  };
  Log log() const;

  // The same request again finds the session that it has made.
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest*,
                             v1::CreateSessionResponse*) override;
  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest*, v1::GetSessionResponse*) override;
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override;
  grpc::Status ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest*, v1::ForkSessionResponse*) override;
  grpc::Status CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest*,
                                 v1::CheckpointSessionResponse*) override;
  grpc::Status ListCheckpoints(grpc::ServerContext*, const v1::ListCheckpointsRequest*,
                               v1::ListCheckpointsResponse*) override;
  grpc::Status DeleteCheckpoint(grpc::ServerContext*, const v1::DeleteCheckpointRequest*,
                                v1::DeleteCheckpointResponse*) override;
  grpc::Status RestoreCheckpoint(grpc::ServerContext*, const v1::RestoreCheckpointRequest*,
                                 v1::RestoreCheckpointResponse*) override;
  grpc::Status PrefetchSessions(grpc::ServerContext*, const v1::PrefetchSessionsRequest*,
                                v1::PrefetchSessionsResponse*) override;
  grpc::Status AcceptTokens(grpc::ServerContext*, const v1::AcceptTokensRequest*, v1::AcceptTokensResponse*) override;
  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse*) override;
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*, v1::GetModelResponse*) override;
  grpc::Status ExportState(grpc::ServerContext*, const v1::ExportStateRequest*,
                           grpc::ServerWriter<v1::ExportStateResponse>*) override;
  grpc::Status ImportState(grpc::ServerContext*, grpc::ServerReader<v1::ImportStateRequest>*,
                           v1::ImportStateResponse*) override;
  // A full snapshot, a delta, another delta and a full one; then the session has ended.
  grpc::Status WatchState(grpc::ServerContext*, const v1::WatchStateRequest*,
                          grpc::ServerWriter<v1::WatchStateResponse>*) override;
  grpc::Status Prefill(grpc::ServerContext*, const v1::PrefillRequest*, v1::PrefillResponse*) override;
  grpc::Status StreamPrefill(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>*) override;
  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status StreamDecode(grpc::ServerContext*,
                            grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*) override;

 private:
  // A step of one layer of one session.
  struct Row {
    std::string session;
    int64_t epoch = 0;                  // 0: not said
    int64_t expected = -1;              // -1: not said
    std::vector<int32_t> parents = {};  // of a draft that is a tree
  };
  struct Step {
    std::string call;
    int32_t layer = 0;
    std::string request_id;
    const v1::Tensor* input = nullptr;
    bool prefill = false;
    bool draft = false;
    bool partial_ok = false;
    std::vector<Row> rows = {};  // of one length
  };
  // What a step's layer says, and gives in this row.
  struct RowResult {
    grpc::Status status;
    std::vector<float> output;
    v1::LayerState state;
  };

  struct Layer {
    ToyState toy;
    std::string reply_id;
    std::string reply_payload;
    std::vector<float> reply;
    bool reply_dropped = false;
  };
  struct State {
    std::map<int32_t, Layer> layers;
    std::string accept_id;

    void DropReplies();
  };
  struct Session {
    std::string create;  // the request, serialized
    int64_t epoch = 1;
    State now;
    std::map<std::string, State> checkpoints;  // by id; "" is the newest
    bool rolled_back = false;                  // of `now` nothing is left
    bool lost = false;                         // .. because a step failed

    void SetStoreBack(const std::string& checkpoint_id);
    void LoseState() { rolled_back = lost = true; }
    void Restore(const State& checkpoint);
    // Why the state cannot be used; nullopt: it can.
    std::optional<grpc::Status> Refusal() const;
  };

  grpc::Status RunPrefill(const std::string& call, const v1::PrefillRequest& request, v1::PrefillResponse* response);
  grpc::Status RunDecode(const std::string& call, const v1::DecodeRequest& request, v1::DecodeResponse* response);
  // Calls write(piece) for one piece of the file after the other.
  template <typename Piece, typename Write>
  void CutInPieces(const std::string& file, const Write& write) const;
  // Reply: a PrefillResponse or a DecodeResponse.
  template <typename Reply>
  grpc::Status RunStep(const Step& step, Reply* reply);

  std::string numerics_id() const;
  static ToyStates StatesOf(const Session& session);
  // The session, where a request that names this epoch may use its state; else why not is in `refusal`.
  template <typename Request>
  Session* FindUsable(const Request& request, grpc::Status* refusal) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // A session that begins with these states.
  grpc::Status AddSession(const std::string& name, const ToyStates& states, v1::Session* out);
  std::optional<Fault> TakeFault() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<Fault> TakeNext(const std::string& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  std::optional<grpc::Status> TakeRefusal(const std::string& call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the fault answers in place of the call, where it leaves the call undone; `refusal` is the reason of kRefuse.
  std::optional<grpc::Status> FailBefore(std::optional<Fault> fault, std::string_view refusal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What it answers once the call is done.
  grpc::Status FailAfter(std::optional<Fault> fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CrashLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Save(Session& session, const std::string& checkpoint_id) const;
  void SaveIfDue(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // nullptr: no such session, or no such layer.
  Session* FindSession(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Layer* FindLayer(const std::string& session, int32_t layer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static v1::LayerState Describe(const Session& session, int32_t index, const Layer& layer);
  static void Describe(const std::string& name, const Session& session, v1::Session* out);

  template <typename Reply>
  grpc::Status Apply(const Step& step, Reply* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Why the step may not move the session's layer.
  grpc::Status Check(const Step& step, const Row& row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the row's `tokens` tokens at `x`; with `look`, only whether they would be refused.
  RowResult ApplyRow(const Step& step, const Row& row, const float* x, size_t tokens, bool look)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  grpc::Status Accept(const std::string& request_id, const v1::DraftAcceptance& acceptance,
                      v1::SessionTokenCounts* counts) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  mutable absl::Mutex mu_;
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  std::map<int, Fault> plan_ ABSL_GUARDED_BY(mu_);  // by log_.steps
  std::map<std::string, std::vector<Fault>> next_faults_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::deque<grpc::Status>> refusals_ ABSL_GUARDED_BY(mu_);
  std::string numerics_id_ ABSL_GUARDED_BY(mu_) = "numerics-1";
  Log log_ ABSL_GUARDED_BY(mu_);
};

// Serves `service` on a free loopback port until destruction.
class LoopbackServer {
 public:
  explicit LoopbackServer(grpc::Service* service);
  ~LoopbackServer();
  const std::string& target() const { return target_; }
  // A client without a socket between; it must not outlive the server.
  std::unique_ptr<Client> Connect(ClientOptions options = {}) const;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace gdn
