// Runs drafts that are trees as chains: each path from a root to a leaf is a sequence with its own slot, convolution
// columns and folds. So a token gets the bits that a chain of its ancestors and itself gives.
//
// Each path runs in a temporary slot, which starts with the session's log entries and last columns and reads the
// session's base in place. After a round of paths, each token's output, log entry and column are taken from the first
// path that contains it; entries and columns go to the session's own slot in token order. Tokens shared by paths are
// computed once per path: the mixer gets one row per path and depth, the projections one per token. Sequences of the
// call that are chains run in their own slots.
// Thread safety: for one thread. Ownership: owns the temporary slots; borrows the step and what it points to.
//
//   GDN_RETURN_IF_ERROR(rounds.Begin(step, log_lengths));
//   while (rounds.Next()) {
//     GDN_RETURN_IF_ERROR(rounds.Enter({{x, round_x, width}}));
//     ...run rounds.Step(step) with rounds.log_lengths(), from round_x to round_y...
//     GDN_RETURN_IF_ERROR(rounds.Leave({{round_y, y, width}}));
//   }
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/layer/gdn_layer.h"

namespace gdn {

// Most bytes of temporary slots at a time, but at least one slot (and one more to align them). Calls that need more run
// in several rounds.
inline constexpr int64_t kTreeSlotBytes = int64_t{64} << 20;

class TreeRounds {
 public:
  explicit TreeRounds(Backend& backend) : backend_(backend) {}

  // Plans the rounds of a step whose draft has valid parents, and allocates the temporary slots; waits for the device
  // if they must grow. `log_lengths` [sequences], host, are those before the step. They and the step's arrays must stay
  // until the last Leave. Fails as Backend::Allocate does.
  absl::Status Begin(const LayerStep& step, const int32_t* log_lengths);
  // Returns the number of rows (path tokens) of the largest round: the round's tensors need as many rows.
  int64_t most_rows() const { return most_rows_; }

  // Goes to the next round, the first after Begin; false if all paths have run.
  bool Next();
  // Returns `step` (Begin's, or a copy with widened tensors) with the round's batch, pool and index arrays, which stay
  // valid until the next round. The caller sets its tensors to the round's.
  LayerStep Step(const LayerStep& step);
  int32_t* log_lengths() { return log_lengths_.data(); }

  // A tensor with dense rows of `floats` floats, to copy between the call's tokens and the round's path tokens: from
  // the former in Enter, from the latter in Leave.
  struct Rows {
    const float* from = nullptr;
    float* to = nullptr;
    int64_t floats = 0;
  };
  // Starts the round: fills the temporary slots from the sessions' slots, and copies each tensor's rows of the call's
  // tokens to the rows of the paths. Issues copies, which may run later.
  absl::Status Enter(absl::Span<const Rows> rows);
  // Ends the round: for tokens that no earlier path contained, copies each tensor's rows back to the call's tokens, and
  // their log entries and columns to the sessions' slots. Issues copies, which may run later.
  absl::Status Leave(absl::Span<const Rows> rows);

 private:
  struct Path {
    int32_t sequence = 0;
    std::vector<int32_t> tokens;  // indices in the sequence, root first
    int32_t fresh = 0;            // depth of the first token that no earlier path contains
    bool in_place = false;        // a chain; runs in its own slot
  };

  void PlanPaths(const LayerStep& step);
  void PlanRounds();
  absl::Status PlaceSlots(const StatePoolView& pool);
  int32_t TokenRow(const Path& path, size_t depth) const;  // row of a path's token in the step
  void AddRows(const Rows& rows, bool back);
  void AddState(const Path& path, const float* from, float* to);
  void AddEntries(const Path& path, const float* from, float* to);
  void AddColumn(const float* from, int64_t from_token, float* to, int64_t to_token);
  absl::Status CopyAll();

  Backend& backend_;
  DeviceBuffer memory_;

  // State of the call.
  LayerStep call_;                    // its batch, counts and bases
  const int32_t* lengths_ = nullptr;  // log lengths before the step
  std::vector<Path> paths_;
  std::vector<size_t> round_ends_;  // ends of the rounds in paths_
  int64_t most_rows_ = 0;
  int32_t slots_ = 0;        // number of temporary slots
  StatePoolView temporary_;  // the temporary slots only
  StatePoolView reach_;      // temporary slots and the pool's under one numbering; used if not apart_
  bool apart_ = false;       // no numbering can address both: bases are copied, chains use temporary slots too

  // State of the round: paths [begin_, end_) of paths_, and the arrays of its step.
  size_t round_ = 0;
  size_t begin_ = 0;
  size_t end_ = 0;
  std::vector<int32_t> cu_seqlens_;
  std::vector<int32_t> path_slots_;
  std::vector<int32_t> path_bases_;
  std::vector<int64_t> path_counts_;
  std::vector<int32_t> log_lengths_;
  std::vector<CopyPiece> pieces_;
};

}  // namespace gdn
