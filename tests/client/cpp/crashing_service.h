// A GdnService for tests of DurableSession: it computes what depends on every byte and call boundary, keeps sessions
// durable as it is told, and crashes, loses replies and fails as a test has planned.
//
// Layers take hidden_states of two channels. A prefill leaves another state than decodes of the same tokens, so that a
// replay with other call boundaries shows; a decode of T tokens leaves what T decodes of one do, and so does a draft of
// which T are accepted.
// Thread safety: as a gRPC service. Ownership: Connect's clients must not outlive it.
//
//   CrashingService service({.layers = 2, .checkpoint_every_tokens = 4});
//   service.Plan(/*call=*/3, Fault::kCrashAfter);
//   auto client = service.Connect();
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "client/cpp/client.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/server.h"

namespace gdn {

inline constexpr int kCrashingChannels = 2;

// What becomes of a call.
enum class Fault {
  kUnavailable,  // refused, nothing moves
  kLoseReply,    // done, and the connection breaks
  kLate,         // done, and the deadline passes
  kCrashBefore,  // the server dies and comes back before it has done anything
  kCrashAfter,   // .. and after it has done the call, and made it durable where that is due
  kRefuse,       // INVALID_ARGUMENT
  kOtherBytes,   // done, with a reply whose first byte is another
};

class CrashingService final : public v1::GdnService::Service {
 public:
  struct Options {
    int layers = 1;
    int64_t checkpoint_every_tokens = 0;  // of any layer; 0: only by CheckpointSession
    bool durable_tier = true;
    bool forget_stored_replies = false;  // a retry is not answered from memory
  };
  explicit CrashingService(Options options);
  ~CrashingService() override;

  std::unique_ptr<Client> Connect();

  // Faults of the call-th Prefill, Decode or AcceptTokens from now on, counted from 0, replays included.
  void Plan(int call, Fault fault);
  // Of the next CreateSession, GetSession and CheckpointSession calls.
  void PlanCreate(Fault fault);
  void PlanGet(std::vector<Fault> faults);
  void PlanCheckpoint(Fault fault);
  void Crash();
  void SetNumerics(const std::string& numerics_id);
  // As if another client had done it.
  void MoveLayer(const std::string& session, int32_t layer, int64_t tokens);

  int calls() const;  // Prefill, Decode and AcceptTokens
  // What the states of a session are: equal texts are equal states, counts and drafts.
  std::string States(const std::string& session) const;

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse*) override;
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest*,
                             v1::CreateSessionResponse*) override;
  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest*, v1::GetSessionResponse*) override;
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override;
  grpc::Status Prefill(grpc::ServerContext*, const v1::PrefillRequest*, v1::PrefillResponse*) override;
  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status AcceptTokens(grpc::ServerContext*, const v1::AcceptTokensRequest*, v1::AcceptTokensResponse*) override;
  grpc::Status CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest*,
                                 v1::CheckpointSessionResponse*) override;

 private:
  struct Layer {
    uint64_t state = 0;
    int64_t token_count = 0;
    std::vector<uint64_t> draft;  // the tokens' values
    std::string reply_id;
    std::string reply_payload;
    std::string reply;  // serialized
  };
  struct State {
    std::map<int32_t, Layer> layers;
    std::string accept_id;
    int32_t accepted_tokens = 0;
  };
  struct Session {
    std::string create;  // the request, serialized
    int64_t epoch = 1;
    State now;
    std::optional<State> durable;
  };
  struct Step {
    std::string session;
    int32_t layer = 0;
    int64_t epoch = 0;
    int64_t expected = -1;
    std::string request_id;
    const v1::Tensor* input = nullptr;
    bool prefill = false;
    bool draft = false;
  };

  std::optional<Fault> TakeFault() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What the fault answers in place of the call, where it leaves the call undone; `refusal` is the reason of kRefuse.
  std::optional<grpc::Status> FailBefore(std::optional<Fault> fault, std::string_view refusal)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // What it answers once the call is done.
  grpc::Status FailAfter(Fault fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CrashLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SaveIfDue(Session& session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Fill(const std::string& name, const Session& session, v1::Session* out) const;
  static v1::LayerState Describe(const Session& session, int32_t index, const Layer& layer);
  template <typename Reply>
  grpc::Status RunStep(const Step& step, Reply* reply);
  grpc::Status Accept(const v1::AcceptTokensRequest& request, v1::AcceptTokensResponse* response)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  template <typename Reply>
  grpc::Status Apply(const Step& step, Reply* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  std::unique_ptr<grpc::Server> server_;
  mutable absl::Mutex mu_;
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  std::map<int, Fault> plan_ ABSL_GUARDED_BY(mu_);
  std::optional<Fault> create_fault_ ABSL_GUARDED_BY(mu_);
  std::optional<Fault> checkpoint_fault_ ABSL_GUARDED_BY(mu_);
  std::vector<Fault> get_faults_ ABSL_GUARDED_BY(mu_);
  std::string numerics_id_ ABSL_GUARDED_BY(mu_) = "numerics-1";
  int calls_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
