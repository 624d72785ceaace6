// A GdnService for tests of clients and tools. (fake_server.h wraps it for users of the package.) It serves the model
// "models/toy" with GDN layers 0 and 2 of 3 (toy_layer.h), streams and state files. It checks requests and answers them
// by the server's own rules: server/validation and session_rules. Tests plan failures, lost replies and crashes.
//
// Thread safety: all methods may be called from any thread. Ownership: the server that it runs in does not own it.
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
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/hash.h"
#include "client/cpp/client.h"
#include "client/cpp/testing/toy_layer.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/server.h"
#include "server/validation/step_input.h"
#include "session_rules/refusals.h"
#include "session_rules/session_rules.h"

namespace gdn {

inline constexpr char kToyModel[] = "models/toy";
// Outputs of more than 64 tokens are not kept: a retry of their step gets REPLY_DROPPED.
inline constexpr int64_t kMaxStoredReplyBytes = 64 * kToyHidden * 4;

// A planned outcome of a call.
enum class Fault {
  kUnavailable,  // UNAVAILABLE; the call is not done
  kLoseReply,    // UNAVAILABLE; the call is done
  kLate,         // DEADLINE_EXCEEDED; the call is done
  kCrashBefore,  // UNAVAILABLE; the server crashes and restarts before the call is done
  kCrashAfter,   // UNAVAILABLE; the server crashes and restarts after the call and the checkpoint that it makes due
  kRefuse,       // INVALID_ARGUMENT; the call is not done
  kOtherBytes,   // for steps: the step is done, but the first byte of its output is changed
  kDropReply,    // UNAVAILABLE; the step is done, its sessions' stored outputs are dropped: a retry gets REPLY_DROPPED
  kRollBack,     // SetStoreBack of all sessions to their newest checkpoints, and then the call
  kLoseState,    // LoseState of all sessions, and then the call
};

class FakeGdnService final : public v1::GdnService::Service {
 public:
  struct Options {
    // Faults of all replies.
    float output_error = 0;            // added to the outputs of `faulty_call`
    std::string faulty_call = {};      // "Prefill", "Decode", "Step", or one of their streams
    bool fail_stream_segment = false;  // every third message of a StreamPrefill fails, and the stream continues
    float exported_state_error = 0;    // added to every element of exported recurrent states
    bool refuse_decode = false;        // Decode and StreamDecode steps get ABORTED
    bool wrong_token_count = false;    // replies say one token too many
    bool damaged_pieces = false;       // pieces of state files have wrong checksums
    // Properties of sessions.
    int layers = 0;  // sessions have layers 0 .. layers - 1; 0: the toy model's layers
    // Outputs are traces instead (see ToyState::trace), and every step must name the epoch and token count that it
    // expects.
    bool traces = false;
    int64_t checkpoint_every_tokens = 0;  // checkpoint after this many tokens of a layer; 0: only CheckpointSession
    bool durable_tier = true;
    bool forget_stored_replies = false;  // replies are not stored, so a retry counts as a new call
    bool save_no_outputs = false;        // checkpoints have stored replies without their outputs
    // Forks, snapshots, exports, checkpoints, restores and watches ignore session_epoch, as older servers do.
    bool ignore_session_epochs = false;
    bool no_step = false;  // Step and StreamStep are unknown methods, as on servers of version 0.1.0
  };
  explicit FakeGdnService(Options options) : options_(std::move(options)) {}
  FakeGdnService() : FakeGdnService(Options{}) {}

  // Plans the outcome of one Prefill, Decode, Step or AcceptTokens, or of one message of their streams. `call` counts
  // them from now on, from 0, with replays.
  void Plan(int call, Fault fault);
  // Plans the outcomes of the next calls of "CreateSession", "GetSession", "DeleteSession", "ForkSession",
  // "SnapshotSession", "SnapshotSessions", "ListSnapshots", "DeleteSnapshots", "CheckpointSession", "ListCheckpoints",
  // "DeleteCheckpoint", "RestoreCheckpoint", "ExportState", "WatchState",
  // "OpenLease", "RenewLease", "EndLease" or "ListLeases", in order. Replaces earlier plans for this
  // method.
  void PlanNext(const std::string& call, std::vector<Fault> faults);
  // Makes the next call return `status` and change nothing. Calls: "Prefill", "StreamPrefill", "Decode",
  // "StreamDecode", "Step", "StreamStep", "AcceptTokens" or one of PlanNext's. Several statuses are returned in order,
  // one by each call.
  void RefuseNext(const std::string& call, grpc::Status status);
  // Restarts the server: sessions return to their newest checkpoints, in a new epoch. Sessions without one are lost,
  // and so are all snapshots.
  void Crash();
  // Simulates a store that was set back to this checkpoint of the session ("": the newest). The session must exist.
  // Until RestoreCheckpoint, steps get STATE_ROLLED_BACK. If there is no such checkpoint, the session has no newest
  // checkpoint any more.
  void SetStoreBack(const std::string& session, const std::string& checkpoint_id);
  // Simulates a step that failed while it changed the session's state. The session must exist. Calls that use its state
  // (steps, acceptances, checkpoints, exports, forks, snapshots) then get STATE_ROLLED_BACK if it has a newest
  // checkpoint, else STATE_LOST.
  void LoseState(const std::string& session);
  // Evicts the snapshot, as a server does whose --snapshot-bytes is full. Does nothing if there is none with this key.
  void EvictSnapshot(const std::string& key);
  void SetNumerics(const std::string& numerics_id);
  // Adds `tokens` to the layer's token count, as if another client had stepped it. Session and layer must exist.
  void MoveLayer(const std::string& session, int32_t layer, int64_t tokens);

  // Describes the states of a session, which must exist: equal texts mean equal states, token counts and drafts.
  std::string States(const std::string& session) const;
  std::set<std::string> session_names() const;
  // Returns the layer's token count, without a pending draft; -1 if there is no such session ("sessions/ID") or layer.
  int64_t token_count(const std::string& session, int32_t layer) const;
  // Calls so far.
  struct Log {
    // Calls of Prefill, Decode, Step and AcceptTokens, and their streams' messages. Calls that RefuseNext refused do
    // not count.
    int steps = 0;
    int sessions_created = 0;
    std::set<std::string> checked_calls;     // names of the methods that were called with an expected token count
    std::set<std::string> identified_calls;  // names of the methods that were called with a request_id
    std::vector<std::string> prefetched;
  };
  Log log() const;

  using Context = grpc::ServerContext;
  // If the same request has made the session before, returns that session.
  grpc::Status CreateSession(Context*, const v1::CreateSessionRequest*, v1::CreateSessionResponse*) override;
  grpc::Status GetSession(Context*, const v1::GetSessionRequest*, v1::GetSessionResponse*) override;
  grpc::Status DeleteSession(Context*, const v1::DeleteSessionRequest*, v1::DeleteSessionResponse*) override;
  grpc::Status ForkSession(Context*, const v1::ForkSessionRequest*, v1::ForkSessionResponse*) override;
  grpc::Status OpenLease(Context*, const v1::OpenLeaseRequest*, v1::OpenLeaseResponse*) override;
  grpc::Status RenewLease(Context*, const v1::RenewLeaseRequest*, v1::RenewLeaseResponse*) override;
  grpc::Status EndLease(Context*, const v1::EndLeaseRequest*, v1::EndLeaseResponse*) override;
  // Returns all leases as one page.
  grpc::Status ListLeases(Context*, const v1::ListLeasesRequest*, v1::ListLeasesResponse*) override;
  grpc::Status SnapshotSession(Context*, const v1::SnapshotSessionRequest*, v1::SnapshotSessionResponse*) override;
  grpc::Status SnapshotSessions(Context*, const v1::SnapshotSessionsRequest*, v1::SnapshotSessionsResponse*) override;
  grpc::Status ListSnapshots(Context*, const v1::ListSnapshotsRequest*, v1::ListSnapshotsResponse*) override;
  grpc::Status DeleteSnapshots(Context*, const v1::DeleteSnapshotsRequest*, v1::DeleteSnapshotsResponse*) override;
  grpc::Status CheckpointSession(Context*, const v1::CheckpointSessionRequest*,
                                 v1::CheckpointSessionResponse*) override;
  grpc::Status ListCheckpoints(Context*, const v1::ListCheckpointsRequest*, v1::ListCheckpointsResponse*) override;
  grpc::Status DeleteCheckpoint(Context*, const v1::DeleteCheckpointRequest*, v1::DeleteCheckpointResponse*) override;
  grpc::Status RestoreCheckpoint(Context*, const v1::RestoreCheckpointRequest*,
                                 v1::RestoreCheckpointResponse*) override;
  grpc::Status PrefetchSessions(Context*, const v1::PrefetchSessionsRequest*, v1::PrefetchSessionsResponse*) override;
  grpc::Status AcceptTokens(Context*, const v1::AcceptTokensRequest*, v1::AcceptTokensResponse*) override;
  grpc::Status GetServerInfo(Context*, const v1::GetServerInfoRequest*, v1::GetServerInfoResponse*) override;
  grpc::Status ListModels(Context*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override;
  grpc::Status GetModel(Context*, const v1::GetModelRequest*, v1::GetModelResponse*) override;
  grpc::Status ExportState(Context*, const v1::ExportStateRequest*,
                           grpc::ServerWriter<v1::ExportStateResponse>*) override;
  grpc::Status ImportState(Context*, grpc::ServerReader<v1::ImportStateRequest>*, v1::ImportStateResponse*) override;
  // Sends a full snapshot, two deltas and another full snapshot. Then reports that the session has ended.
  grpc::Status WatchState(Context*, const v1::WatchStateRequest*, grpc::ServerWriter<v1::WatchStateResponse>*) override;
  grpc::Status Prefill(Context*, const v1::PrefillRequest*, v1::PrefillResponse*) override;
  grpc::Status StreamPrefill(Context*,
                             grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>*) override;
  grpc::Status Decode(Context*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status StreamDecode(Context*,
                            grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*) override;
  grpc::Status Step(Context*, const v1::StepRequest*, v1::StepResponse*) override;
  grpc::Status StreamStep(Context*, grpc::ServerReaderWriter<v1::StreamStepResponse, v1::StreamStepRequest>*) override;

 private:
  // A step of one layer of one session.
  struct Row {
    std::string session;
    std::optional<int64_t> epoch = std::nullopt;
    std::optional<int64_t> expected = std::nullopt;  // token count that the caller expects
  };
  struct StepCall {
    std::string call;
    absl::StatusOr<CheckedInput> input;
    const v1::Tensor* tensor = nullptr;  // the hidden states
    bool one_row = false;                // a Prefill: its errors name no row
    bool partial_ok = false;
    std::vector<Row> rows = {};
  };
  // The result of one row of a step.
  struct RowResult {
    std::vector<float> output = {};
    int64_t token_count = 0;
    int64_t durable_token_count = 0;
  };

  struct Layer {
    ToyState toy;
    // The last step with a request id, and its reply.
    std::string request_id;
    Hash128 payload;
    RowResult reply;
    bool reply_dropped = false;

    LayerFacts Facts(int32_t index) const;
  };
  struct State {
    std::map<int32_t, Layer> layers;
    Acceptance accepted;  // the last one with a request id

    void DropReplies();
  };
  struct Session {
    std::string id = {};
    std::string create = {};  // the request, serialized
    std::string lease = {};   // "leases/ID"; "": none
    int64_t epoch = 1;
    State now = {};
    std::map<std::string, State> checkpoints = {};  // by id; "" is the newest
    absl::Status unusable = {};                     // why `now` must not be used; OK: it may be

    void SetStoreBack(const std::string& checkpoint_id);
    void LoseState();
    void Restore(const State& checkpoint);
    SessionFacts Facts() const;
    std::vector<LayerFacts> AllLayers() const;
  };

  template <typename Request>
  static std::optional<int64_t> EpochOf(const Request& request) {
    return request.has_session_epoch() ? std::optional<int64_t>(request.session_epoch()) : std::nullopt;
  }
  // Returns the refusal planned for this method, or else runs `done` under mu_ with the planned fault, if any. A fault
  // may also skip `done`, or replace its OK by an error.
  grpc::Status Call(const std::string& method, absl::FunctionRef<absl::Status(std::optional<Fault>)> done);
  grpc::Status RunPrefill(const std::string& call, const v1::PrefillRequest& request, v1::PrefillResponse* response);
  grpc::Status RunDecode(const std::string& call, const v1::DecodeRequest& request, v1::DecodeResponse* response);
  grpc::Status RunMixed(const std::string& call, const v1::StepRequest& request, v1::StepResponse* response);
  // Calls write(piece) for each piece of the file, in order.
  template <typename Piece, typename Write>
  void CutInPieces(const std::string& file, const Write& write) const;
  // Runs a Decode or a Step. `Response`: a DecodeResponse or a StepResponse.
  template <typename Response>
  grpc::Status RunStep(const StepCall& step, Response* reply);

  std::optional<Fault> TakeFault(const std::string& method) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CrashLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Save(Session& session, const std::string& checkpoint_id) const;
  // OK if the lease exists, or `name` is empty.
  absl::Status CheckLease(const std::string& name) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DescribeLease(const std::string& name, v1::Lease* out) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SaveIfDue(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<Session*> Find(const std::string& name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status CheckDurable() const { return options_.durable_tier ? absl::OkStatus() : NoDurableTier(); }
  // ABORTED (EPOCH_MISMATCH) unless the session is in the request's epoch, the request names none, or
  // options_.ignore_session_epochs is set.
  template <typename Request>
  absl::Status CheckEpochOf(const Session& session, const Request& request) const {
    if (options_.ignore_session_epochs) return absl::OkStatus();
    return CheckEpoch(session.Facts(), session.AllLayers(), EpochOf(request));
  }
  // Does a call of this method, which reads the session's state file.
  template <typename Request>
  grpc::Status ReadFile(const std::string& method, const Request& request, float error, std::string* file);
  // Takes a snapshot, or finds the one that the same request has taken.
  absl::Status TakeSnapshot(const v1::SnapshotSessionRequest& request, v1::Snapshot* out)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<const Session*> FindSnapshot(const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t SnapshotLossMark() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void DescribeSnapshot(const Session& snapshot, v1::Snapshot* out);
  static v1::LayerState Describe(const Session& session, int32_t index, const Layer& layer);
  static void Describe(const Session& session, v1::Session* out);

  template <typename Response>
  absl::Status Apply(const StepCall& step, Response* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::StatusOr<StepAnswer> AnswerRow(const StepCall& step, size_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the stored reply, or applies the row's acceptance and its tokens at `x`.
  RowResult ApplyRow(const StepCall& step, size_t row, StepAnswer answer, const float* x)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Decides an acceptance by the rules. nullopt if its request id says that it was done before.
  absl::StatusOr<std::optional<Acceptance>> AnswerAcceptance(const std::string& request_id,
                                                             const v1::DraftAcceptance& asked)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Accept(Session& session, const Acceptance& acceptance) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Advances the layer by the tokens of its draft that `acceptance` names, and forgets the rest of the draft. Does
  // nothing without a draft. The tokens must be in the draft.
  void AcceptDraft(int32_t index, Layer& layer, const Acceptance& acceptance) const;

  const Options options_;
  mutable absl::Mutex mu_;
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, google::protobuf::Duration> leases_ ABSL_GUARDED_BY(mu_);  // name -> grace
  std::map<std::string, Session> snapshots_ ABSL_GUARDED_BY(mu_);                  // by key, which is their id
  std::vector<std::string> lost_snapshots_
      ABSL_GUARDED_BY(mu_);                                   // keys of those that were evicted since the last start
  int64_t first_loss_mark_ ABSL_GUARDED_BY(mu_) = 1'000'000;  // the mark before the first of lost_snapshots_
  std::map<int, Fault> plan_ ABSL_GUARDED_BY(mu_);            // by the value of log_.steps at the call
  std::map<std::string, std::vector<Fault>> next_faults_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::deque<grpc::Status>> refusals_ ABSL_GUARDED_BY(mu_);
  std::string numerics_id_ ABSL_GUARDED_BY(mu_) = "numerics-1";
  Log log_ ABSL_GUARDED_BY(mu_);
};

// Serves `service` on a free loopback port until it is destroyed.
class LoopbackServer {
 public:
  explicit LoopbackServer(grpc::Service* service);
  ~LoopbackServer();
  const std::string& target() const { return target_; }
  // Returns a client in this process, without a socket. It must not outlive the server.
  std::unique_ptr<Client> Connect(ClientOptions options = {}) const;

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace gdn
