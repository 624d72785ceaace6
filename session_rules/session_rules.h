// The rules of a session: which steps and acceptances it takes, in which order they are checked, and how a retry is
// known.
//
// The server's sessions and the fake server of client/cpp/testing ask the same functions, so both answer alike. The
// functions decide and change nothing: the caller carries the answer out.
// Thread safety: pure functions. Ownership: facts are views of the caller's session, for one call.
//
//   GDN_ASSIGN_OR_RETURN(const StepAnswer answer, AnswerStep(session, layer, request));
//   if (answer == StepAnswer::kGo) { ...run the step... }
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "base/layer_dims.h"

namespace gdn {

// What a caller asks of one layer.
struct StepRequest {
  int32_t layer = 0;
  InputKind kind = InputKind::kHiddenStates;
  std::string_view request_id = {};  // "": none; the caller's
  Hash128 payload = {};              // of all inputs; looked at only with a request id
  int64_t tokens = 1;                // that it brings
  std::optional<int64_t> epoch = std::nullopt;
  std::optional<int64_t> expected_token_count = std::nullopt;
};

// What becomes of the drafts of a session's layers.
struct Acceptance {
  int32_t accepted_tokens = 0;     // the path's, if there is one
  std::vector<int32_t> path = {};  // of the draft's tokens; empty: its first ones
  std::string request_id = {};     // "": none
  std::optional<int64_t> epoch = std::nullopt;

  // The accepted tokens of a draft, in order.
  std::vector<int32_t> tokens() const;
};

struct SessionFacts {
  const std::string& id;
  int64_t epoch = 1;
  bool has_model = true;  // false: an operator session
  // The last acceptance that had a request id.
  std::string_view accept_request_id = {};
  int32_t accepted_tokens = 0;
  absl::Span<const int32_t> accepted_path = {};
};

// A step that had a request id.
struct KnownStep {
  std::string_view request_id = {};  // "": there is none
  Hash128 payload = {};
};

struct LayerFacts {
  int32_t layer = 0;
  int64_t token_count = 0;
  int32_t draft_length = 0;                      // of the pending draft
  absl::Span<const int32_t> draft_parents = {};  // empty: a chain
  InputKind kind = InputKind::kNone;             // of its steps so far
  bool busy = false;                             // a step of it is running
  KnownStep in_flight = {};                      // that step
  KnownStep stored = {};                         // the last one that has ended and had an id
  bool output_dropped = false;                   // the stored one's output is gone
};

enum class StepAnswer : uint8_t {
  kGo,      // run it
  kStored,  // it has happened: answer with the stored reply
  kJoin,    // it is running: answer with its reply
};

// Looks at the request id, the epoch, the expected token count, a running step, a pending draft, the input's kind and
// the limit of counts, in this order. INVALID_ARGUMENT (REQUEST_ID_REUSED), ABORTED (REPLY_DROPPED, EPOCH_MISMATCH,
// TOKEN_COUNT_MISMATCH, SESSION_BUSY), FAILED_PRECONDITION (DRAFT_PENDING, INPUT_NEEDS_MODEL, INPUT_KIND_MISMATCH),
// OUT_OF_RANGE (COUNT_LIMIT).
absl::StatusOr<StepAnswer> AnswerStep(const SessionFacts& session, const LayerFacts& layer, const StepRequest& request);

// OK if the session is in this epoch, or the caller names none. ABORTED (EPOCH_MISMATCH, with the least token count of
// the layers, after which the caller goes on).
absl::Status CheckEpoch(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                        const std::optional<int64_t>& epoch);

// An acceptance as a request says it, without its id and epoch: a count, or a path of at most `max_draft` tokens. A
// path of the draft's first tokens becomes a count. INVALID_ARGUMENT (INVALID_LENGTHS, TOO_MANY_TOKENS).
absl::StatusOr<Acceptance> ReadAcceptance(int32_t accepted_tokens, absl::Span<const int32_t> path, int32_t max_draft);

// Whether the acceptance was done before, by its request id. If not, it can be done: each draft has its tokens.
// `layers` are all of the session's. INVALID_ARGUMENT (REQUEST_ID_REUSED, TOO_MANY_TOKENS, VALUE_OUT_OF_RANGE), ABORTED
// (EPOCH_MISMATCH, SESSION_BUSY).
absl::StatusOr<bool> WasAccepted(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                                 const Acceptance& request);

}  // namespace gdn
