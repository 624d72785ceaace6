// A client of the Gated DeltaNet service: the API's methods with absl statuses, deadlines and metadata.
//
// Thread safety: all methods may be called from any thread at any time. Ownership: the client owns its stub and
// channel; streams it opens must not outlive it. Calls block. Requests are the API's own messages; errors carry the
// server's reason (base/error.h).
//
//   auto client = Client::Connect("127.0.0.1:50061");
//   GDN_ASSIGN_OR_RETURN(v1::Session session, client->CreateSession(create));       // create.set_model("models/qwen")
//   prefill.set_session(session.name());
//   GDN_ASSIGN_OR_RETURN(v1::PrefillResponse reply, client->Prefill(prefill));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/shared_memory.h"
#include "client/cpp/state_transfer.h"
#include "client/cpp/state_watch.h"
#include "client/cpp/stream.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/channel.h"
#include "grpcpp/security/credentials.h"

namespace gdn {

struct ClientOptions {
  absl::Duration default_timeout = absl::Seconds(60);  // of each call but step streams; InfiniteDuration: no deadline
  std::string token;                                   // sent as it is in `authorization` metadata; "": none
  // Instead of `token`: a file whose first line is sent as "Bearer LINE", read anew for each call, so that the token
  // can be replaced; "": none.
  std::string token_file = {};
  int max_receive_message_bytes = -1;                       // -1: no limit
  absl::Duration max_reconnect_backoff = absl::Seconds(1);  // between attempts to reach a server that is not there
};

struct CallOptions {
  std::optional<absl::Duration> timeout;  // default: ClientOptions::default_timeout; for step streams and WatchState:
                                          // no deadline
  std::string affinity;                   // sent as `x-gdn-affinity` for routing; "": the id of the first session that
                                          // the call names, as a server takes it for a session without one
  TransferProgress progress = nullptr;    // of ExportState and ImportState
};

class Client {
 public:
  // Does not wait for a connection; the first call does. `target` is a gRPC name such as "host:port" or "unix:/path".
  // If nothing can be connected to by that name, as to port 99999, each call answers INVALID_ARGUMENT and says why.
  static std::unique_ptr<Client> Connect(const std::string& target, ClientOptions options = {});
  static std::unique_ptr<Client> Connect(const std::string& target,
                                         const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                                         ClientOptions options = {});

  // For callers with a channel of their own.
  explicit Client(const std::shared_ptr<grpc::ChannelInterface>& channel, ClientOptions options = {});
  // For tests (v1::MockGdnServiceStub); without ImportState, which answers FAILED_PRECONDITION.
  explicit Client(std::unique_ptr<v1::GdnService::StubInterface> stub, ClientOptions options = {});
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  // Every method: the server's errors, INVALID_ARGUMENT where the token's file cannot be read, or the token or affinity
  // holds other than printable ASCII, DEADLINE_EXCEEDED when the timeout has passed, UNAVAILABLE where no server
  // answers.
  absl::StatusOr<v1::GetServerInfoResponse> GetServerInfo(const CallOptions& call = {});
  absl::StatusOr<std::vector<v1::Model>> ListModels(const CallOptions& call = {});
  absl::StatusOr<v1::Model> GetModel(const std::string& name, const CallOptions& call = {});  // "models/NAME"

  absl::StatusOr<v1::Session> CreateSession(const v1::CreateSessionRequest& request, const CallOptions& call = {});
  absl::StatusOr<v1::Session> GetSession(const std::string& name, const CallOptions& call = {});  // "sessions/ID"
  // All pages; the timeout is of each page.
  absl::StatusOr<std::vector<v1::Session>> ListSessions(const CallOptions& call = {});
  // Of every caller, each with its owner; for admins.
  absl::StatusOr<std::vector<v1::Session>> ListAllSessions(const CallOptions& call = {});
  absl::Status DeleteSession(const std::string& name, const CallOptions& call = {});
  absl::Status DeleteSession(const v1::DeleteSessionRequest& request, const CallOptions& call = {});
  // Its states leave the device; the next step brings them back.
  absl::StatusOr<v1::Session> EvictSession(const v1::EvictSessionRequest& request, const CallOptions& call = {});

  // The state file, in pieces to `sink` in order, or as one string. Every piece's checksum is verified before `sink`
  // sees it. DATA_LOSS (INVALID_STATE_FILE) where pieces are damaged, missing, out of order or not as many bytes as
  // announced; `sink` may have been given the pieces before that. An error of `sink` ends the call and is returned. If
  // the request names an epoch, `sink` sees nothing of a file of another: ABORTED (EPOCH_MISMATCH).
  absl::Status ExportState(const v1::ExportStateRequest& request,
                           absl::FunctionRef<absl::Status(std::string_view)> sink, const CallOptions& call = {});
  absl::StatusOr<std::string> ExportState(const v1::ExportStateRequest& request, const CallOptions& call = {});

  // Makes a session from a state file, sent with checksums in pieces of kImportChunkBytes. target.total_bytes is set
  // from the file. The second form asks `source` for the next bytes, at most as many as its argument says; none: the
  // end. An error of `source` ends the call, makes no session and is returned.
  absl::StatusOr<v1::Session> ImportState(const v1::ImportStateRequest::Target& target, std::string_view file,
                                          const CallOptions& call = {});
  absl::StatusOr<v1::Session> ImportState(const v1::ImportStateRequest::Target& target,
                                          absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                          const CallOptions& call = {});

  // A session's snapshots as it advances; see state_watch.h. With a session_epoch, each is of that epoch.
  absl::StatusOr<StateWatch> WatchState(const v1::WatchStateRequest& request, const CallOptions& call = {});

  absl::StatusOr<std::vector<v1::Session>> ForkSession(const v1::ForkSessionRequest& request,
                                                       const CallOptions& call = {});
  // The states of the session ("sessions/ID") as those of the prefix, which it has just prefilled; see prompt_prefix.h.
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const std::string& session, const v1::PromptPrefix& prefix,
                                                    const CallOptions& call = {});
  absl::StatusOr<v1::KeepPrefixResponse> KeepPrefix(const v1::KeepPrefixRequest& request, const CallOptions& call = {});
  // How many kept prefixes of the caller's have gone: all.
  absl::StatusOr<int64_t> DropPrefixes(const CallOptions& call = {});
  // A session_epoch of this and of RestoreCheckpoint is compared with the reply's too, as older servers do not know it:
  // ABORTED (EPOCH_MISMATCH) then says what has happened to another epoch's state.
  absl::StatusOr<v1::Checkpoint> CheckpointSession(const v1::CheckpointSessionRequest& request,
                                                   const CallOptions& call = {});
  // The named checkpoints of a session ("sessions/ID").
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

  // Memory to put these calls' tensors in, where the server is on this host; see shared_memory.h. The timeout is of its
  // making. UNIMPLEMENTED where the server shares none.
  absl::StatusOr<std::unique_ptr<SharedMemory>> ShareMemory(int64_t bytes, const CallOptions& call = {});

  // Where the time of the caller's last steps went; and how many the server keeps.
  absl::StatusOr<v1::TraceCallsResponse> TraceCalls(const v1::TraceCallsRequest& request, const CallOptions& call = {});

  // What /metrics answers; for admins.
  absl::StatusOr<std::string> GetMetrics(const CallOptions& call = {});
  // Begins the server's end; for admins. With request.wait a timeout is best InfiniteDuration.
  absl::StatusOr<v1::DrainProgress> Drain(const v1::DrainRequest& request, const CallOptions& call = {});

  // Open a stream. Errors of the call itself appear on the stream.
  absl::StatusOr<PrefillStream> StreamPrefill(const CallOptions& call = {});
  absl::StatusOr<DecodeStream> StreamDecode(const CallOptions& call = {});

 private:
  friend class AsyncClient;
  using Stub = v1::GdnService::StubInterface;

  absl::Status PrepareContext(const CallOptions& call, std::optional<absl::Duration> default_timeout,
                              grpc::ClientContext* context) const;
  template <typename Request, typename Response>
  absl::StatusOr<Response> Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                                const Request& request, const CallOptions& call);
  absl::StatusOr<std::vector<v1::Session>> AllPages(v1::ListSessionsRequest request, const CallOptions& call);

  const std::shared_ptr<grpc::ChannelInterface> channel_;  // nullptr in tests with a stub of their own
  const std::unique_ptr<Stub> stub_;
  const ClientOptions options_;
};

}  // namespace gdn
