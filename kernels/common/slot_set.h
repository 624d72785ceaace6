// A set of the slots of a call: finds duplicates and tests membership in a few nanoseconds a slot, without allocation
// for most calls.
//
// Thread safety: a plain value. Ownership: owns its table.
//
//   SlotSet written(count);
//   for (int32_t slot : slots) distinct &= written.Add(slot);
//   if (!distinct) return RepeatedSlot("MaterializeState", "dst", slots);
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "kernels/common/contract.h"

namespace gdn {

class SlotSet {
 public:
  // Makes an empty set for at most `most` different slots, most >= 0.
  explicit SlotSet(int32_t most)
      : bits_(std::bit_width(2 * static_cast<uint32_t>(most) + 1)), table_(size_t{1} << bits_, kNone) {}

  // Adds a slot, which may be any number but INT32_MIN. True if it was not in the set.
  bool Add(int32_t slot) {
    int32_t& place = table_[PlaceOf(slot)];
    const bool is_new = place == kNone;
    place = slot;
    return is_new;
  }
  bool Contains(int32_t slot) const { return table_[PlaceOf(slot)] != kNone; }

 private:
  // Marks an empty element; no pool has this slot.
  static constexpr int32_t kNone = std::numeric_limits<int32_t>::min();
  static constexpr size_t kInlined = 512;

  // Returns the index in table_ of the slot, or of the empty element where the slot belongs. At most half of the table
  // is in use.
  size_t PlaceOf(int32_t slot) const {
    const size_t mask = table_.size() - 1;
    // Multiplicative (golden ratio) hashing spreads neighbouring numbers.
    size_t place = (static_cast<uint32_t>(slot) * 0x9e3779b9u) >> (32 - bits_);
    while (table_[place] != kNone && table_[place] != slot) place = (place + 1) & mask;
    return place;
  }

  int bits_;
  absl::InlinedVector<int32_t, kInlined> table_;
};

// Returns INVALID_ARGUMENT (VALUE_OUT_OF_RANGE) that names the lowest slot that is in `slots` more than once; there
// must be one. `op` and `name` are the operator's and the array's names for the message.
inline absl::Status RepeatedSlot(absl::string_view op, absl::string_view name, std::vector<int32_t> slots) {
  std::sort(slots.begin(), slots.end());
  const int32_t twice = *std::adjacent_find(slots.begin(), slots.end());
  return InvalidField(op, name, "slot ", twice, " is in ", name, " more than once; expected distinct slots");
}

}  // namespace gdn
