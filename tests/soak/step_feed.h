// Feeds operator sessions with inputs from a seed, and checks their outputs. The expected outputs are learnt from a
// server without other load. In any batch, and after any move between tiers, the outputs must have the same bits.
//
// Thread safety: constant after Learn. Ownership: owns its inputs.
//
//   GDN_ASSIGN_OR_RETURN(const StepFeed feed, StepFeed::Learn(undisturbed, {.tokens = 512}));
//   GDN_RETURN_IF_ERROR(client.CreateSession(feed.Creation("a")).status());
//   const std::vector<FeedRow> rows = {{.session = "sessions/a", .stream = 3, .token = 0}};
//   GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, client.Decode(feed.Decode(rows, /*layer=*/0)));
//   GDN_RETURN_IF_ERROR(feed.Check(rows, /*layer=*/0, reply));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "gdn/v1/service.pb.h"

namespace gdn {

struct FeedOptions {
  int32_t key_heads = 2;
  int32_t value_heads = 4;
  int32_t key_dim = 32;
  int32_t value_dim = 32;
  int32_t layers = 2;
  int32_t streams = 8;
  int64_t tokens = 512;  // tokens of a stream in each layer
  uint64_t seed = 1;
};

// One row of a decode: the session has seen `token` tokens of the stream in this layer, and gets the next one.
struct FeedRow {
  std::string session;
  int32_t stream = 0;
  int64_t token = 0;
};

class StepFeed {
 public:
  // Makes a feed that has learnt nothing. All methods except Check may be used.
  explicit StepFeed(const FeedOptions& options);
  // Makes a feed, and learns the outputs by running every stream once in temporary sessions. Errors of the calls.
  static absl::StatusOr<StepFeed> Learn(Client& undisturbed, const FeedOptions& options);

  const FeedOptions& options() const { return options_; }
  int64_t session_bytes() const { return session_bytes_; }

  v1::CreateSessionRequest Creation(const std::string& id) const;
  // Makes a request with expected token counts. The caller may set a request id.
  v1::DecodeRequest Decode(const std::vector<FeedRow>& rows, int32_t layer) const;
  // Makes a prefill of arbitrary tokens, for callers that do not check the answer.
  v1::PrefillRequest Prefill(const std::string& session, int32_t layer, int64_t tokens) const;
  // DATA_LOSS if an output or a token count differs from the expected one.
  absl::Status Check(const std::vector<FeedRow>& rows, int32_t layer, const v1::DecodeResponse& reply) const;

 private:
  absl::Status LearnLayer(Client& undisturbed, int32_t layer);
  v1::DeltaRuleInput Input(const std::vector<int64_t>& leading, const std::vector<int64_t>& entries) const;
  int64_t EntryOf(int32_t stream, int64_t token) const;
  uint64_t& Expected(int32_t layer, int32_t stream, int64_t token);

  FeedOptions options_;
  int64_t session_bytes_ = 0;
  std::vector<float> q_, k_, v_, g_, beta_;  // tables of entries; each stream uses them in a different order
  std::vector<uint64_t> expected_;           // digests of outputs
};

}  // namespace gdn
