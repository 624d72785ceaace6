#include "kernels/layer/tree_rounds.h"

#include <algorithm>
#include <utility>

#include "base/draft_tree.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

// Where a slot may begin in `memory`, so that one numbering of slots reaches it and those of `pool`.
float* FirstSlot(const DeviceBuffer& memory, const StatePoolView& pool) {
  const int64_t bytes = pool.layout.slot_bytes();
  const int64_t off = (static_cast<char*>(memory.data()) - reinterpret_cast<char*>(pool.data)) % bytes;
  const int64_t skipped = off == 0 ? 0 : off > 0 ? bytes - off : -off;
  return reinterpret_cast<float*>(static_cast<char*>(memory.data()) + skipped);
}

}  // namespace

absl::Status TreeRounds::Begin(const LayerStep& step, const int32_t* log_lengths) {
  call_ = step;
  lengths_ = log_lengths;
  round_ = 0;
  begin_ = end_ = 0;
  PlanPaths(step);
  const auto trees = std::ranges::count(paths_, false, &Path::in_place);
  slots_ = static_cast<int32_t>(
      std::min<int64_t>(trees, std::max<int64_t>(1, kTreeSlotBytes / step.pool.layout.slot_bytes())));
  GDN_RETURN_IF_ERROR(PlaceSlots(step.pool));
  PlanRounds();
  return absl::OkStatus();
}

void TreeRounds::PlanPaths(const LayerStep& step) {
  paths_.clear();
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t length = step.batch.length(i);
    if (length == 0 || step.batch.slots[i] < 0) continue;
    const absl::Span<const int32_t> parents(step.draft_parents + step.batch.cu_seqlens[i], static_cast<size_t>(length));
    DraftPaths ways = DraftPathsOf(parents);
    for (size_t p = 0; p < ways.paths.size(); ++p) {
      std::vector<int32_t>& tokens = ways.paths[p];
      const auto is_shared = [&](int32_t token) {
        return ways.places[static_cast<size_t>(token)].path != static_cast<int32_t>(p);
      };
      const auto fresh = static_cast<int32_t>(std::ranges::count_if(tokens, is_shared));
      paths_.push_back({.sequence = i, .tokens = std::move(tokens), .fresh = fresh, .in_place = IsDraftChain(parents)});
    }
  }
}

void TreeRounds::PlanRounds() {
  round_ends_.clear();
  most_rows_ = 0;
  int64_t rows = 0;
  int32_t slots = 0;
  for (size_t p = 0; p < paths_.size(); ++p) {
    const auto tokens = static_cast<int64_t>(paths_[p].tokens.size());
    const int32_t slot = paths_[p].in_place ? 0 : 1;
    if (p > 0 && (slots + slot > slots_ || rows + tokens > kMaxMergedTokens)) {
      round_ends_.push_back(p);
      rows = slots = 0;
    }
    rows += tokens;
    slots += slot;
    most_rows_ = std::max(most_rows_, rows);
  }
  if (!paths_.empty()) round_ends_.push_back(paths_.size());
}

absl::Status TreeRounds::PlaceSlots(const StatePoolView& pool) {
  const StateLayout& layout = pool.layout;
  const auto place = [&](int32_t slots) -> absl::Status {
    const size_t bytes = static_cast<size_t>((int64_t{slots} + 1) * layout.slot_bytes());
    if (bytes > memory_.bytes()) {
      GDN_RETURN_IF_ERROR(backend_.Synchronize());  // work in flight may still use the old ones
      memory_ = DeviceBuffer();
      GDN_ASSIGN_OR_RETURN(memory_, DeviceBuffer::Make(backend_, bytes));
    }
    temporary_ = {.layout = layout, .data = FirstSlot(memory_, pool), .slot_count = slots};
    reach_ = pool;
    apart_ = !JoinPools(temporary_, &reach_);
    return absl::OkStatus();
  };
  GDN_RETURN_IF_ERROR(place(slots_));
  if (!apart_) return absl::OkStatus();
  for (Path& path : paths_) path.in_place = false;
  slots_ = std::min<int32_t>(static_cast<int32_t>(paths_.size()),
                             static_cast<int32_t>(std::max<int64_t>(1, kTreeSlotBytes / layout.slot_bytes())));
  GDN_RETURN_IF_ERROR(place(slots_));
  reach_ = temporary_;
  apart_ = true;
  return absl::OkStatus();
}

bool TreeRounds::Next() {
  if (round_ == round_ends_.size()) return false;
  begin_ = end_;
  end_ = round_ends_[round_++];
  cu_seqlens_.assign(1, 0);
  path_slots_.clear();
  path_bases_.clear();
  path_counts_.clear();
  log_lengths_.clear();
  int32_t next = 0;  // temporary slot
  for (size_t p = begin_; p < end_; ++p) {
    const Path& path = paths_[p];
    const int32_t i = path.sequence;
    const int32_t own = call_.batch.slots[i];
    const int32_t base = call_.base_slots == nullptr ? own : call_.base_slots[i];
    const int32_t slot = path.in_place ? SlotIn(reach_, call_.pool, own) : SlotIn(reach_, temporary_, next++);
    cu_seqlens_.push_back(cu_seqlens_.back() + static_cast<int32_t>(path.tokens.size()));
    path_slots_.push_back(slot);
    path_bases_.push_back(apart_ ? slot : SlotIn(reach_, call_.pool, base));
    path_counts_.push_back(call_.token_counts == nullptr ? 0 : call_.token_counts[i]);
    log_lengths_.push_back(lengths_[i]);
  }
  return true;
}

LayerStep TreeRounds::Step(const LayerStep& step) {
  LayerStep round = step;
  round.pool = reach_;
  round.batch = {.sequences = static_cast<int32_t>(path_slots_.size()),
                 .cu_seqlens = cu_seqlens_.data(),
                 .slots = path_slots_.data()};
  round.token_counts = call_.token_counts == nullptr ? nullptr : path_counts_.data();
  round.base_slots = path_bases_.data();
  round.draft_parents = nullptr;
  return round;
}

int32_t TreeRounds::TokenRow(const Path& path, size_t depth) const {
  return call_.batch.cu_seqlens[path.sequence] + path.tokens[depth];
}

void TreeRounds::AddRows(const Rows& rows, bool back) {
  int64_t row = 0;  // of the round
  for (size_t p = begin_; p < end_; ++p) {
    const Path& path = paths_[p];
    for (size_t depth = 0; depth < path.tokens.size(); ++depth, ++row) {
      if (back && static_cast<int32_t>(depth) < path.fresh) continue;
      const int64_t token = TokenRow(path, depth);
      float* const to = rows.to + (back ? token : row) * rows.floats;
      const float* const from = rows.from + (back ? row : token) * rows.floats;
      // Rows that follow one another on both sides are one piece.
      if (!pieces_.empty() && pieces_.back().to + pieces_.back().floats == to &&
          pieces_.back().from + pieces_.back().floats == from) {
        pieces_.back().floats += rows.floats;
      } else {
        pieces_.push_back({to, from, rows.floats});
      }
    }
  }
}

void TreeRounds::AddColumn(const float* from, int64_t from_token, float* to, int64_t to_token) {
  const StateLayout& layout = call_.pool.layout;
  const int64_t channels = layout.dims().conv_channels();
  const auto at = [&](int64_t token) { return layout.conv_offset() + layout.conv_column(token) * channels; };
  pieces_.push_back({to + at(to_token), from + at(from_token), channels});
}

// What a path needs of its session: log entries, the last columns, and the base where it is not read in its place.
void TreeRounds::AddState(const Path& path, const float* from, float* to) {
  const StateLayout& layout = call_.pool.layout;
  const int64_t entries = lengths_[path.sequence];
  for (const auto& [offset, floats] : layout.log_sections()) {
    if (entries > 0) pieces_.push_back({to + offset, from + offset, entries * floats});
  }
  if (call_.kind != InputKind::kDeltaRule) {
    const int64_t count = call_.token_counts[path.sequence];
    const int64_t columns = layout.dims().conv_width - 1;
    for (int64_t token = count - columns; token < count; ++token) AddColumn(from, token, to, token);
  }
  if (!apart_) return;
  const int32_t own = call_.batch.slots[path.sequence];
  const float* base = call_.pool.slot(call_.base_slots == nullptr ? own : call_.base_slots[path.sequence]);
  pieces_.push_back({to + layout.base_offset(), base + layout.base_offset(), layout.log_k_offset()});
}

void TreeRounds::AddEntries(const Path& path, const float* from, float* to) {
  const StateLayout& layout = call_.pool.layout;
  const int64_t entries = lengths_[path.sequence];
  for (auto depth = static_cast<size_t>(path.fresh); depth < path.tokens.size(); ++depth) {
    const int64_t token = path.tokens[depth];
    const auto row = static_cast<int64_t>(depth);
    for (const auto& [offset, floats] : layout.log_sections()) {
      pieces_.push_back({to + offset + (entries + token) * floats, from + offset + (entries + row) * floats, floats});
    }
    if (call_.kind == InputKind::kDeltaRule) continue;
    const int64_t count = call_.token_counts[path.sequence];
    AddColumn(from, count + row, to, count + token);
  }
}

absl::Status TreeRounds::CopyAll() {
  const absl::Status status = backend_.CopyPieces(pieces_);
  pieces_.clear();
  return status;
}

absl::Status TreeRounds::Enter(absl::Span<const Rows> rows) {
  for (size_t p = begin_; p < end_; ++p) {
    const Path& path = paths_[p];
    if (path.in_place) continue;
    AddState(path, call_.pool.slot(call_.batch.slots[path.sequence]), reach_.slot(path_slots_[p - begin_]));
  }
  for (const Rows& tensor : rows) AddRows(tensor, /*back=*/false);
  return CopyAll();
}

absl::Status TreeRounds::Leave(absl::Span<const Rows> rows) {
  for (const Rows& tensor : rows) AddRows(tensor, /*back=*/true);
  for (size_t p = begin_; p < end_; ++p) {
    const Path& path = paths_[p];
    if (path.in_place) continue;
    AddEntries(path, reach_.slot(path_slots_[p - begin_]), call_.pool.slot(call_.batch.slots[path.sequence]));
  }
  return CopyAll();
}

}  // namespace gdn
