// The rules of a session: which steps and acceptances it takes, the order of the checks, and how a retry is recognised.
//
// The server's sessions and the fake server of client/cpp/testing ask the same functions, so both answer alike. The
// functions only decide; the caller carries the answer out.
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

// An acceptance: which tokens of the drafts of a session's layers become the session's. The other tokens are dropped.
struct Acceptance {
  int32_t accepted_tokens = 0;     // number of tokens; the path's length if there is a path
  std::vector<int32_t> path = {};  // indices in the draft; empty: the first ones
  std::string request_id = {};     // "": none
  std::optional<int64_t> epoch = std::nullopt;

  // Returns the indices of the accepted tokens in the draft, in order: the path, or 0 .. accepted_tokens - 1.
  std::vector<int32_t> tokens() const;
};

// A step that a call asks for on one layer.
struct StepRequest {
  int32_t layer = 0;
  InputKind kind = InputKind::kHiddenStates;
  std::string_view request_id = {};  // "": none; borrowed from the caller
  Hash128 payload = {};              // hash of all inputs; used only with a request id
  int64_t tokens = 1;                // tokens of the step
  std::optional<int64_t> epoch = std::nullopt;
  std::optional<int64_t> expected_token_count = std::nullopt;
  // An acceptance of the layer's draft, applied together with the step or not at all.
  std::optional<Acceptance> accept_before = std::nullopt;
};

struct SessionFacts {
  const std::string& id;
  int64_t epoch = 1;
  bool has_model = true;  // false: an operator session
  // The last acceptance that had a request id, as in Acceptance; "": there was none.
  std::string_view accept_request_id = {};
  int32_t accepted_tokens = 0;
  absl::Span<const int32_t> accepted_path = {};
};

// A step that is running or has ended, recognised by its request id.
struct KnownStep {
  std::string_view request_id = {};  // "": there is none
  Hash128 payload = {};
};

struct LayerFacts {
  int32_t layer = 0;
  int64_t token_count = 0;
  int32_t draft_length = 0;                      // tokens of the pending draft; 0: none
  absl::Span<const int32_t> draft_parents = {};  // empty: a chain
  InputKind kind = InputKind::kNone;             // input kind of its steps so far
  bool busy = false;                             // a step of the layer is running
  KnownStep in_flight = {};                      // the running step
  KnownStep stored = {};                         // the last ended step that had a request id
  bool output_dropped = false;                   // the output of the stored step was dropped
};

enum class StepAnswer : uint8_t {
  kGo,      // run it
  kStored,  // it has happened: answer with the stored reply
  kJoin,    // it is running: answer with its reply
};

// Decides how to answer a step, and changes nothing. The checks are, in this order: request id, epoch, acceptance,
// expected token count (after the acceptance), running step, pending draft, kind of input, and limit of counts.
// INVALID_ARGUMENT (REQUEST_ID_REUSED, TOO_MANY_TOKENS, VALUE_OUT_OF_RANGE), ABORTED (REPLY_DROPPED, EPOCH_MISMATCH,
// TOKEN_COUNT_MISMATCH, SESSION_BUSY), FAILED_PRECONDITION (DRAFT_PENDING, INPUT_NEEDS_MODEL, INPUT_KIND_MISMATCH),
// OUT_OF_RANGE (COUNT_LIMIT).
absl::StatusOr<StepAnswer> AnswerStep(const SessionFacts& session, const LayerFacts& layer, const StepRequest& request);

// OK if `epoch` is nullopt or the session's epoch. Else ABORTED (EPOCH_MISMATCH) with the smallest token count of the
// layers in its metadata, from which the caller must send its steps again.
absl::Status CheckEpoch(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                        const std::optional<int64_t>& epoch);

// Reads an acceptance from the fields of a request, without its id and epoch: a count from 0 on, or a path of at most
// `max_draft` tokens. A path of the draft's first tokens becomes a count. INVALID_ARGUMENT (INVALID_LENGTHS if both are
// given, TOO_MANY_TOKENS). WasAccepted and AnswerStep check whether the draft has these tokens.
absl::StatusOr<Acceptance> ReadAcceptance(int32_t accepted_tokens, absl::Span<const int32_t> path, int32_t max_draft);

// True if this acceptance was done before, by its request id. False if it can be done now: each draft has the accepted
// tokens, or there is no draft and it accepts none. `layers`: all of the session's. INVALID_ARGUMENT
// (REQUEST_ID_REUSED, TOO_MANY_TOKENS, VALUE_OUT_OF_RANGE), ABORTED (EPOCH_MISMATCH, SESSION_BUSY).
absl::StatusOr<bool> WasAccepted(const SessionFacts& session, absl::Span<const LayerFacts> layers,
                                 const Acceptance& request);

}  // namespace gdn
