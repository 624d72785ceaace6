// A client of the Gated DeltaNet service: the API's methods, with absl statuses, deadlines and metadata.
//
// Thread safety: all methods may be called from any thread at any time. Ownership: the client owns its stub and
// channel; it must outlive the streams that it opens. Calls block. Requests are the API's own messages. Errors carry
// the server's reason (base/error.h).
//
//   auto client = Client::Connect("127.0.0.1:50061");
//   GDN_ASSIGN_OR_RETURN(v1::Session session, client->CreateSession(create));       // create.set_model("models/qwen")
//   prefill.set_session(session.name());
//   GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, client->Prefill(prefill));
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/ring_channel.h"
#include "client/cpp/shared_memory.h"
#include "client/cpp/state_transfer.h"
#include "client/cpp/state_watch.h"
#include "client/cpp/stream.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace gdn {

class RingLink;

struct ClientOptions {
  // Timeout of a call; InfiniteDuration: no deadline. Step streams and WatchState have none.
  absl::Duration default_timeout = absl::Seconds(60);
  std::string token = {};  // sent unchanged as `authorization` metadata; "": none
  // Instead of `token`: a file whose first line is sent as "Bearer LINE". It is read again for each call, so the token
  // can be replaced. "": none.
  std::string token_file = {};
  int max_receive_message_bytes = -1;  // -1: no limit; only for Connect
  // Longest wait between attempts to reach a server, 50 ms to 1 h; only for Connect.
  absl::Duration max_reconnect_backoff = absl::Seconds(1);
  // Only for Connect. If set, and `target` is of this host ("localhost", "127.", "[::1]", or a Unix socket), steps go
  // through a ring as after OpenRing. The first step opens it. While there is no ring, steps are messages.
  std::optional<RingOptions> ring = std::nullopt;
};

struct CallOptions {
  // Default: ClientOptions::default_timeout; step streams and WatchState have no deadline by default.
  std::optional<absl::Duration> timeout;
  // Routing key, sent as `x-gdn-affinity`. "": the affinity that a CreateSession names, else the id of the first
  // session in the request, which servers use for sessions without an affinity. Step streams, ShareMemory and
  // AsyncClient then send none.
  std::string affinity = {};
  TransferProgress progress = nullptr;  // called by ExportState and ImportState, on the calling thread
};

class Client {
 public:
  // Makes a client, without TLS or with `credentials`. Does not connect; the first call does. `target` is a gRPC name
  // such as "host:port" or "unix:/path". If the target is invalid (such as port 99999), each call returns
  // INVALID_ARGUMENT with the reason.
  static std::unique_ptr<Client> Connect(const std::string& target, ClientOptions options = {});
  static std::unique_ptr<Client> Connect(const std::string& target,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                         ClientOptions options = {});

  // Makes a client on a channel that the caller has made.
  explicit Client(const std::shared_ptr<grpc::ChannelInterface>& channel, ClientOptions options = {});
  // Makes a client on a stub, for tests (v1::MockGdnServiceStub). ImportState then returns FAILED_PRECONDITION. So do
  // OpenRing, ShareMemory and the calls of AsyncClient if the stub has no async(), like the mock.
  explicit Client(std::unique_ptr<v1::GdnService::StubInterface> stub, ClientOptions options = {});
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;
  ~Client();

  // Every method returns the server's errors. INVALID_ARGUMENT if the token file cannot be read, or the token or
  // affinity is not printable ASCII. DEADLINE_EXCEEDED if the timeout has passed. UNAVAILABLE if no server
  // answers.
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& call = {});
  absl::StatusOr<std::vector<v1::Model>> ListModels(const CallOptions& call = {});
  // Returns the model "models/NAME". NOT_FOUND (MODEL_NOT_FOUND) if the server does not serve it.
  absl::StatusOr<v1::Model> GetModel(const std::string& name, const CallOptions& call = {});

  absl::StatusOr<v1::Session> CreateSession(const v1::CreateSessionRequest& request, const CallOptions& call = {});
  // Returns the session "sessions/ID". NOT_FOUND (SESSION_NOT_FOUND) if the caller has none with this name.
  absl::StatusOr<v1::Session> GetSession(const std::string& name, const CallOptions& call = {});
  // Returns the caller's sessions, from all pages of the list. The timeout applies to each page.
  absl::StatusOr<std::vector<v1::Session>> ListSessions(const CallOptions& call = {});
  // Returns the sessions of every caller, from all pages of the list, each with its owner. PERMISSION_DENIED unless the
  // caller logged in as an admin. The timeout applies to each page.
  absl::StatusOr<std::vector<v1::Session>> ListAllSessions(const CallOptions& call = {});
  absl::Status DeleteSession(const std::string& name, const CallOptions& call = {});
  absl::Status DeleteSession(const v1::DeleteSessionRequest& request, const CallOptions& call = {});
  // Many sessions in one call, 1 to Limits.max_batch. Each entry of the reply has its own result or error
  // (StatusFromRpc). If the server returns an error for the call itself, no entry was carried out. After UNAVAILABLE or
  // DEADLINE_EXCEEDED entries may have been. UNIMPLEMENTED without a reason: the server is of version 0.1.0.
  absl::StatusOr<v1::CreateSessionsResponse> CreateSessions(const v1::CreateSessionsRequest& request,
                                                            const CallOptions& call = {});
  absl::StatusOr<v1::DeleteSessionsResponse> DeleteSessions(const v1::DeleteSessionsRequest& request,
                                                            const CallOptions& call = {});
  absl::StatusOr<v1::ForkSessionsResponse> ForkSessions(const v1::ForkSessionsRequest& request,
                                                        const CallOptions& call = {});
  absl::StatusOr<v1::ResetSessionsResponse> ResetSessions(const v1::ResetSessionsRequest& request,
                                                          const CallOptions& call = {});
  // Moves the session's states off the device, and returns the session. The next step brings them back.
  absl::StatusOr<v1::Session> EvictSession(const v1::EvictSessionRequest& request, const CallOptions& call = {});

  // Leases: a session whose CreateSessionRequest.lease names one ends a grace period after the last OpenLease or
  // RenewLease. KeptLease (kept_lease.h) opens a lease and renews it by itself. RenewLease and EndLease return
  // NOT_FOUND (LEASE_NOT_FOUND) if the lease has ended. EndLease returns the number of sessions that were deleted.
  absl::StatusOr<v1::Lease> OpenLease(const v1::OpenLeaseRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::Lease> RenewLease(const std::string& name, const CallOptions& call = {});  // `name`: "leases/ID"
  absl::StatusOr<int64_t> EndLease(const std::string& name, const CallOptions& call = {});
  // Returns the caller's leases, from all pages of the list. The timeout applies to each page.
  absl::StatusOr<std::vector<v1::Lease>> ListLeases(const CallOptions& call = {});

  // Passes the state file to `sink` piece by piece, in order, or returns it as one string. Each piece's checksum is
  // verified before `sink` gets the piece. DATA_LOSS (INVALID_STATE_FILE) if pieces are damaged, missing, out of order
  // or of another total size than announced; `sink` may have got earlier pieces. An error of `sink` ends the call and
  // is returned. ABORTED (EPOCH_MISMATCH) if the request names another epoch than the file; `sink` then gets nothing.
  absl::Status ExportState(const v1::ExportStateRequest& request,
                           absl::FunctionRef<absl::Status(std::string_view)> sink, const CallOptions& call = {});
  absl::StatusOr<std::string> ExportState(const v1::ExportStateRequest& request, const CallOptions& call = {});

  // Makes a session from a state file. The file is sent with checksums, in pieces of kImportChunkBytes. The first form
  // sets target.total_bytes. The second form calls `source` for at most that many next bytes, until it returns none;
  // each view must stay valid until the next call. An error of `source` ends the call, makes no session and is
  // returned.
  absl::StatusOr<v1::Session> ImportState(const v1::ImportStateRequest::Target& target, std::string_view file,
                                          const CallOptions& call = {});
  absl::StatusOr<v1::Session> ImportState(const v1::ImportStateRequest::Target& target,
                                          absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                          const CallOptions& call = {});

  // Watches a session's snapshots as it advances (state_watch.h). With a session_epoch, all are of that epoch.
  absl::StatusOr<StateWatch> WatchState(const v1::WatchStateRequest& request, const CallOptions& call = {});

  absl::StatusOr<std::vector<v1::Session>> ForkSession(const v1::ForkSessionRequest& request,
                                                       const CallOptions& call = {});
  // Takes read-only snapshots under the caller's own keys. Sessions start from one by CreateSessionRequest.snapshot or
  // ForkSessionRequest.snapshot. The second form takes many, and answers each entry by itself.
  absl::StatusOr<v1::SnapshotSessionResponse> SnapshotSession(const v1::SnapshotSessionRequest& request,
                                                              const CallOptions& call = {});
  absl::StatusOr<v1::SnapshotSessionsResponse> SnapshotSessions(const v1::SnapshotSessionsRequest& request,
                                                                const CallOptions& call = {});
  // Returns all pages as one, with the losses after the one with this mark (0: all that the server knows). The timeout
  // applies to each page.
  absl::StatusOr<v1::ListSnapshotsResponse> ListSnapshots(int64_t lost_after = 0, const CallOptions& call = {});
  // Deletes snapshots, 1 to Limits.max_batch, none named twice. Returns one status for each key, in order, which is
  // NOT_FOUND for an unknown key. An error of the call itself: none was deleted, except perhaps after UNAVAILABLE or
  // DEADLINE_EXCEEDED.
  absl::StatusOr<v1::DeleteSnapshotsResponse> DeleteSnapshots(const std::vector<std::string>& keys,
                                                              const CallOptions& call = {});
  // Stores the states of the session ("sessions/ID") as those of the prefix that it has just prefilled, for new
  // sessions to start from (prompt_prefix.h).
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const std::string& session, const v1::PromptPrefix& prefix,
                                                    const CallOptions& call = {});
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const v1::KeepPrefixRequest& request, const CallOptions& call = {});
  // Deletes all stored prefixes of the caller, and returns their number.
  absl::StatusOr<int64_t> DropPrefixes(const CallOptions& call = {});
  // If CheckpointSession or RestoreCheckpoint names a session_epoch, the client also checks the reply's epoch, because
  // older servers ignore the field. Returns ABORTED (EPOCH_MISMATCH) if the reply shows that the server used the state
  // of another epoch.
  absl::StatusOr<v1::Checkpoint> CheckpointSession(const v1::CheckpointSessionRequest& request,
                                                   const CallOptions& call = {});
  // Returns the named checkpoints of a session ("sessions/ID"), ascending by id; a damaged one has only its
  // checkpoint_id. NOT_FOUND (SESSION_NOT_FOUND) for an unknown session, FAILED_PRECONDITION (NO_DURABLE_TIER) on a
  // server without one.
  absl::StatusOr<std::vector<v1::Checkpoint>> ListCheckpoints(const std::string& session, const CallOptions& call = {});
  absl::Status DeleteCheckpoint(const std::string& session, const std::string& checkpoint_id,
                                const CallOptions& call = {});
  absl::StatusOr<v1::Session> RestoreCheckpoint(const v1::RestoreCheckpointRequest& request,
                                                const CallOptions& call = {});
  absl::StatusOr<v1::AcceptTokensResponse> AcceptTokens(const v1::AcceptTokensRequest& request,
                                                        const CallOptions& call = {});
  absl::StatusOr<v1::PrefetchSessionsResponse> PrefetchSessions(const std::vector<std::string>& names,
                                                                const CallOptions& call = {});

  absl::StatusOr<v1::PrefillResponse> Prefill(const v1::PrefillRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::DecodeResponse> Decode(const v1::DecodeRequest& request, const CallOptions& call = {});
  // Advances a layer of many sessions, each by its own number of tokens and in its own way: decode, draft or prefill.
  // The tensors hold the rows' tokens one after the other, [N, ..], in messages or in shared memory. The output is
  // [N, D] for hidden_states, [N, HV * V] for projected, [N, HV, V] for delta_rule. A row has the bits of Decode or
  // Prefill of its session alone. UNIMPLEMENTED without a reason: the server is of version 0.1.0 (StepIsUnimplemented).
  absl::StatusOr<v1::StepResponse> Step(const v1::StepRequest& request, const CallOptions& call = {});
  // True once the server has answered Step() of this client with UNIMPLEMENTED, because it is older than the method.
  // Calls of AsyncClient and streams do not count.
  bool StepIsUnimplemented() const { return step_is_unimplemented_; }

  // Opens memory of `bytes` bytes (1 or more) for the tensors of steps, shared with a server on the same host
  // (shared_memory.h). The timeout applies to the opening. UNIMPLEMENTED if the server shares no memory,
  // RESOURCE_EXHAUSTED if it has no room.
  absl::StatusOr<std::unique_ptr<SharedMemory>> ShareMemory(int64_t bytes, const CallOptions& call = {});

  // Makes Prefill, Decode, Step and AcceptTokens of this client go through a ring to a server on the same host, which
  // takes a fraction of a message's time (ring_channel.h). Calls that do not fit the ring are messages; streams and
  // AsyncClient always are. StepPlace (step_place.h) saves copies of tensors. After a ring has ended, for example with
  // its server, a later call opens another one by itself, for which it gives half of its own timeout at most; calls are
  // messages until then. A fork of this process has no ring. The timeout here applies to the opening. Errors of
  // RingChannel::Open; the client then goes on with messages. Call it before the calls that are to use the ring; no
  // call of these methods may run meanwhile.
  absl::Status OpenRing(const RingOptions& options = {}, const CallOptions& call = {});
  // True while calls go through a ring.
  bool UsesRing() const;

  // Returns the time that each stage of the caller's last steps took. If request.keep is set, also sets how many steps
  // the server records for all callers; where callers log in, that is PERMISSION_DENIED unless the caller is an admin.
  absl::StatusOr<v1::TraceCallsResponse> TraceCalls(const v1::TraceCallsRequest& request, const CallOptions& call = {});

  // Returns the server's metrics in Prometheus' text format. PERMISSION_DENIED if callers log in and the caller is no
  // admin.
  absl::StatusOr<std::string> GetMetrics(const CallOptions& call = {});
  // Starts the server's shutdown, unless it has begun, and returns its progress. With request.wait (use the timeout
  // InfiniteDuration), returns only when the progress has `ended`. PERMISSION_DENIED unless the caller logged in as an
  // admin, or if the server cannot be ended by a call.
  absl::StatusOr<v1::DrainProgress> Drain(const v1::DrainRequest& request, const CallOptions& call = {});

  // Open a stream without waiting for the server. INVALID_ARGUMENT if the token or affinity cannot be sent. The
  // server's errors come from the stream's Read and Finish.
  absl::StatusOr<PrefillStream> StreamPrefill(const CallOptions& call = {});
  absl::StatusOr<DecodeStream> StreamDecode(const CallOptions& call = {});
  absl::StatusOr<MixedStream> StreamStep(const CallOptions& call = {});

 private:
  friend class AsyncClient;
  friend class StepPlace;
  using Stub = v1::GdnService::StubInterface;

  absl::Status PrepareContext(const CallOptions& call, std::optional<absl::Duration> default_timeout,
                              grpc::ClientContext* context) const;
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, const CallOptions& call);
  // Opens rings for this client.
  std::function<absl::StatusOr<std::unique_ptr<RingChannel>>(absl::Duration timeout)> RingOpener(
      const RingOptions& options, const std::string& affinity);
  absl::StatusOr<std::vector<v1::Session>> AllPages(const v1::ListSessionsRequest& request, const CallOptions& call);
  // Calls `method` for each page, and passes the page to `take`.
  template <typename Request, typename Response>
  absl::Status ForEachPage(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                           Request request, const CallOptions& call,
                           absl::FunctionRef<void(std::type_identity_t<Response>&)> take);

  const std::shared_ptr<grpc::ChannelInterface> channel_;  // nullptr in tests that have their own stub
  const std::unique_ptr<Stub> stub_;
  const ClientOptions options_;
  std::unique_ptr<RingLink> ring_;
  std::atomic<bool> step_is_unimplemented_ = false;
};

}  // namespace gdn
