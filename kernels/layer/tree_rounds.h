// Drafts that are trees, run as chains: each way from a root to a leaf is a sequence of its own, in a slot of its own,
// with its own convolution columns and folds. So a token has the bits that a chain of its ancestors and itself gives.
//
// A path's slot is a temporary one: it begins with the session's log entries and last columns, and reads the session's
// base where it is. When a round of paths has run, each token's output, log entry and column are taken from the first
// path that holds it; entries and columns go to the session's own slot, in the order of the tokens. Tokens that paths
// share are computed once for each of them: the mixer sees leaves x depth rows, the projections one a token.
// Sequences of the same call that are chains run in their own slots, as they are.
// Thread safety: for one thread. Ownership: owns the temporary slots, at most kTreeSlotBytes or one slot; the step and
// what it points to stay the caller's.
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

// Temporary slots of a device take no more than this, or one slot: a call whose paths need more runs in rounds.
inline constexpr int64_t kTreeSlotBytes = int64_t{64} << 20;

class TreeRounds {
 public:
  explicit TreeRounds(Backend& backend) : backend_(backend) {}

  // Of a draft with parents, which is valid.
  absl::Status Begin(const LayerStep& step, const int32_t* log_lengths);
  // Rows of the largest round.
  int64_t most_rows() const { return most_rows_; }

  // The next round; false where all paths have run.
  bool Next();
  // `step`, which is Begin's or one with its tensors widened, for the paths of the round. Its tensors are the caller's
  // to set.
  LayerStep Step(const LayerStep& step);
  int32_t* log_lengths() { return log_lengths_.data(); }

  // Rows of `floats`, a token's or a path token's.
  struct Rows {
    const float* from = nullptr;
    float* to = nullptr;
    int64_t floats = 0;
  };
  // Makes the round's slots, and copies the tokens' rows to those of the paths.
  absl::Status Enter(absl::Span<const Rows> rows);
  // Copies back the rows of the tokens that this round has computed first, and writes their entries and columns.
  absl::Status Leave(absl::Span<const Rows> rows);

 private:
  struct Path {
    int32_t sequence = 0;
    std::vector<int32_t> tokens;  // of the sequence, root first
    int32_t fresh = 0;            // tokens from this depth on are in no path before
    bool in_place = false;        // a chain, in its own slot
  };

  void PlanPaths(const LayerStep& step);
  void PlanRounds();
  absl::Status PlaceSlots(const StatePoolView& pool);
  int32_t TokenRow(const Path& path, size_t depth) const;  // in the step
  void AddRows(const Rows& rows, bool back);
  void AddState(const Path& path, const float* from, float* to);
  void AddEntries(const Path& path, const float* from, float* to);
  void AddColumn(const float* from, int64_t from_token, float* to, int64_t to_token);
  absl::Status CopyAll();

  Backend& backend_;
  DeviceBuffer memory_;

  // Of the call.
  LayerStep call_;                    // its batch, counts and bases
  const int32_t* lengths_ = nullptr;  // of the logs, before
  std::vector<Path> paths_;
  std::vector<size_t> round_ends_;  // in paths_
  int64_t most_rows_ = 0;
  int32_t slots_ = 0;        // temporary ones
  StatePoolView temporary_;  // those alone
  StatePoolView reach_;      // those, and the pool's but where one numbering cannot reach both
  bool apart_ = false;       // then bases are copied, and chains are as trees

  // Of the round: paths [begin_, end_) of paths_, and what its step has of each.
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
