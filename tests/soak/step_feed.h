// Sessions of an operator whose every output is known before: what they are fed is made of a seed, and what they answer
// was learnt from a server that had nothing else to do. Whatever they are batched with, moved to and brought back
// from, the answers must be the same bits.
//
// Thread safety: constant once it has learnt. Ownership: owns its inputs.
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
  int64_t tokens = 512;  // of a stream, in each layer
  uint64_t seed = 1;
};

// One row of a decode: a session that has taken `token` tokens of a stream in this layer, and takes the next.
struct FeedRow {
  std::string session;
  int32_t stream = 0;
  int64_t token = 0;
};

class StepFeed {
 public:
  // One that has learnt nothing, for those who look at no answer: all but Check.
  explicit StepFeed(const FeedOptions& options);
  // Runs every stream once, in sessions of its own that end with it. Errors of the calls.
  static absl::StatusOr<StepFeed> Learn(Client& undisturbed, const FeedOptions& options);

  const FeedOptions& options() const { return options_; }
  int64_t session_bytes() const { return session_bytes_; }

  v1::CreateSessionRequest Creation(const std::string& id) const;
  // With expected token counts; a request id is the caller's to set.
  v1::DecodeRequest Decode(const std::vector<FeedRow>& rows, int32_t layer) const;
  // Any tokens of any length, for those who do not look at the answer.
  v1::PrefillRequest Prefill(const std::string& session, int32_t layer, int64_t tokens) const;
  // DATA_LOSS where an output or a token count differs from what was learnt.
  absl::Status Check(const std::vector<FeedRow>& rows, int32_t layer, const v1::DecodeResponse& reply) const;

 private:
  absl::Status LearnLayer(Client& undisturbed, int32_t layer);
  v1::DeltaRuleInput Input(const std::vector<int64_t>& leading, const std::vector<int64_t>& entries) const;
  int64_t EntryOf(int32_t stream, int64_t token) const;
  uint64_t& Expected(int32_t layer, int32_t stream, int64_t token);

  FeedOptions options_;
  int64_t session_bytes_ = 0;
  std::vector<float> q_, k_, v_, g_, beta_;  // tables of entries, which streams take in orders of their own
  std::vector<uint64_t> expected_;           // digests of outputs
};

}  // namespace gdn
