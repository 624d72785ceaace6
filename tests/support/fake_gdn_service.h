// A GdnService over the simplest layer with a state, for tests of clients and tools.
//
// Layer L computes y_t = (L + 1) * (x_0 + .. + x_t), element by element over D = 4 channels. Its recurrent state is
// that sum as [1, D, 1], its conv state the newest three inputs as [D, 3]. It has the model "models/toy" with GDN
// layers 0 and 2 of 3, checks session names, token counts and kinds of call as the API says, and can be told to go
// wrong.
// Thread safety: as a gRPC service. Ownership: the server it runs in does not own it.
//
//   FakeGdnService service;
//   LoopbackServer server(&service);
//   auto client = Client::Connect(server.target());
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/server.h"

namespace gdn {

inline constexpr int kToyHidden = 4;       // D
inline constexpr int kToyConvColumns = 3;  // W - 1
inline constexpr int32_t kToyLayers[] = {0, 2};
inline constexpr char kToyFingerprint[] = "0123456789abcdef0123456789abcdef";

// One layer of one session.
struct ToyState {
  std::array<float, kToyHidden> sum = {};
  std::array<std::array<float, kToyConvColumns>, kToyHidden> newest = {};
  int64_t token_count = 0;

  // y for one token's x, both [D].
  std::array<float, kToyHidden> Step(int32_t layer, const float* x);
};

class FakeGdnService final : public v1::GdnService::Service {
 public:
  // What to do wrong.
  struct Faults {
    float output_error = 0;            // added to the outputs of `faulty_call`
    std::string faulty_call = {};      // "Prefill", "StreamPrefill", "Decode" or "StreamDecode"
    bool fail_stream_segment = false;  // every third message of a StreamPrefill fails by itself
    float exported_state_error = 0;    // added to every element of exported recurrent states
    bool refuse_decode = false;        // Decode answers SESSION_BUSY
    bool wrong_token_count = false;    // replies say one token too many
    bool damaged_pieces = false;       // state files come with other checksums than their bytes'
  };
  explicit FakeGdnService(Faults faults) : faults_(std::move(faults)) {}
  FakeGdnService() : FakeGdnService(Faults{}) {}

  std::set<std::string> session_names() const;
  // Tokens that a layer has seen; -1 without such a session.
  int64_t token_count(const std::string& session, int32_t layer) const;
  std::vector<std::string> prefetched() const;
  int sessions_created() const;
  // Names of the calls that came with an expected token count, and with a request_id.
  std::set<std::string> checked_calls() const;
  std::set<std::string> identified_calls() const;

  grpc::Status GetServerInfo(grpc::ServerContext*, const v1::GetServerInfoRequest*,
                             v1::GetServerInfoResponse*) override;
  grpc::Status ListModels(grpc::ServerContext*, const v1::ListModelsRequest*, v1::ListModelsResponse*) override;
  grpc::Status GetModel(grpc::ServerContext*, const v1::GetModelRequest*, v1::GetModelResponse*) override;
  grpc::Status CreateSession(grpc::ServerContext*, const v1::CreateSessionRequest*,
                             v1::CreateSessionResponse*) override;
  grpc::Status GetSession(grpc::ServerContext*, const v1::GetSessionRequest*, v1::GetSessionResponse*) override;
  grpc::Status DeleteSession(grpc::ServerContext*, const v1::DeleteSessionRequest*,
                             v1::DeleteSessionResponse*) override;
  grpc::Status ExportState(grpc::ServerContext*, const v1::ExportStateRequest*,
                           grpc::ServerWriter<v1::ExportStateResponse>*) override;
  grpc::Status ImportState(grpc::ServerContext*, grpc::ServerReader<v1::ImportStateRequest>*,
                           v1::ImportStateResponse*) override;
  // A full snapshot, a delta, another delta and a full one; then the session has ended.
  grpc::Status WatchState(grpc::ServerContext*, const v1::WatchStateRequest*,
                          grpc::ServerWriter<v1::WatchStateResponse>*) override;
  grpc::Status ForkSession(grpc::ServerContext*, const v1::ForkSessionRequest*, v1::ForkSessionResponse*) override;
  grpc::Status CheckpointSession(grpc::ServerContext*, const v1::CheckpointSessionRequest*,
                                 v1::CheckpointSessionResponse*) override;
  grpc::Status RestoreCheckpoint(grpc::ServerContext*, const v1::RestoreCheckpointRequest*,
                                 v1::RestoreCheckpointResponse*) override;
  grpc::Status PrefetchSessions(grpc::ServerContext*, const v1::PrefetchSessionsRequest*,
                                v1::PrefetchSessionsResponse*) override;
  grpc::Status Prefill(grpc::ServerContext*, const v1::PrefillRequest*, v1::PrefillResponse*) override;
  grpc::Status StreamPrefill(grpc::ServerContext*,
                             grpc::ServerReaderWriter<v1::StreamPrefillResponse, v1::StreamPrefillRequest>*) override;
  grpc::Status Decode(grpc::ServerContext*, const v1::DecodeRequest*, v1::DecodeResponse*) override;
  grpc::Status StreamDecode(grpc::ServerContext*,
                            grpc::ServerReaderWriter<v1::StreamDecodeResponse, v1::StreamDecodeRequest>*) override;

 private:
  using Session = std::map<int32_t, ToyState>;  // by layer

  // The session's state file. The caller holds mu_.
  std::string StateFile(const Session& session) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The same of the session named so; nullopt without such a session.
  std::optional<std::string> StateFileOf(const std::string& name) const;
  uint64_t Checksum(std::string_view data) const;
  // Calls write(piece) for one piece of the file after the other.
  template <typename Piece, typename Write>
  void CutInPieces(const std::string& file, const Write& write) const;
  void Describe(const std::string& name, const Session& session, v1::Session* out) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::Status Advance(const std::string& call, const std::string& session, int32_t layer, int64_t expected_count,
                       const float* input, int64_t tokens, std::vector<float>* output, int64_t* token_count);
  grpc::Status RunPrefill(const std::string& call, const v1::PrefillRequest& request, v1::PrefillResponse* response);
  grpc::Status RunDecode(const std::string& call, const v1::DecodeRequest& request, v1::DecodeResponse* response);

  const Faults faults_;
  mutable absl::Mutex mu_;
  std::map<std::string, Session> sessions_ ABSL_GUARDED_BY(mu_);
  std::map<std::string, std::map<std::string, Session>> checkpoints_ ABSL_GUARDED_BY(mu_);  // by session and id
  std::map<std::string, int64_t> restores_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> prefetched_ ABSL_GUARDED_BY(mu_);
  int sessions_created_ ABSL_GUARDED_BY(mu_) = 0;
  std::set<std::string> checked_calls_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> identified_calls_ ABSL_GUARDED_BY(mu_);
};

// Serves `service` on a free loopback port until destruction.
class LoopbackServer {
 public:
  explicit LoopbackServer(grpc::Service* service);
  ~LoopbackServer();
  const std::string& target() const { return target_; }

 private:
  std::unique_ptr<grpc::Server> server_;
  std::string target_;
};

}  // namespace gdn
