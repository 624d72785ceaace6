// Layout of a state slot: the base state, the decode log and the convolution columns of one (session, layer).
//
// A slot is slot_floats() float32 values, except that the base may be bfloat16 (base_dtype()):
//   base   [HV, K, V]     the recurrent state S0 (a backend may permute the last two axes; see BackendInfo)
//   log_k  [R, H, K]      keys of the tokens since the base      R = log_capacity + max_draft
//   log_u  [R, HV, V]     their write vectors u
//   log_g  [R, HV]        their log decays; [R, HV, K] where dims.decay is kPerChannel
//   conv   [P, C]         pre-convolution inputs; token t is column t mod P, P = conv_width - 1 + max_draft
// The caller, not the slot, stores the number of log entries in use and the token count. A fresh slot is all zero.
// Each section starts at a multiple of 16 floats. Thread safety: a plain value.
//
// A bfloat16 base is rounded to nearest even whenever it is written. All backends write it at the same moments, so that
// bits do not depend on the backend: at a decode's fold, at MaterializeState, and in a prefill after every
// kBaseRoundTokens tokens of the call and at its end. Between these moments everything is float32.
//
//   GDN_ASSIGN_OR_RETURN(StateLayout layout, StateLayout::Make(dims, /*max_draft=*/8));
//   float* log_g = pool + slot * layout.slot_floats() + layout.log_g_offset();
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/layer_dims.h"

namespace gdn {

// L: number of log entries (accepted tokens) after which the log is folded into the base. Part of numerics_id.
inline constexpr int32_t kLogCapacity = 16;
// Largest max_draft (tokens) that StateLayout::Make accepts.
inline constexpr int32_t kMaxDraftLimit = 64;
// Tokens of a prefill between two roundings of a base that is not float32, counted from the sequence's first row. A
// multiple of both chunk lengths. It divides the lengths of the segments that a prefill call is computed in
// (gdn_layer.h), except the last one's.
inline constexpr int32_t kBaseRoundTokens = 64;

class StateLayout {
 public:
  StateLayout() = default;

  // Makes the layout of slots for layers of these dims. INVALID_ARGUMENT for dims that ValidateLayerDims refuses,
  // max_draft outside [1, kMaxDraftLimit] or a base_dtype other than kF32 and kBF16.
  static absl::StatusOr<StateLayout> Make(const LayerDims& dims, int32_t max_draft, DType base_dtype = DType::kF32);

  const LayerDims& dims() const { return dims_; }
  int32_t max_draft() const { return max_draft_; }
  DType base_dtype() const { return base_dtype_; }
  int32_t log_rows() const { return kLogCapacity + max_draft_; }                                         // R: entries
  int32_t conv_columns() const { return dims_.conv_width > 0 ? dims_.conv_width - 1 + max_draft_ : 0; }  // P: columns

  // Returns the ring column of token `token`, counted from the session's first, which is 0; earlier ones are negative.
  // Only if conv_width > 0.
  int64_t conv_column(int64_t token) const {
    const int64_t columns = conv_columns();        // not 0 if there is a convolution
    return (token % columns + columns) % columns;  // NOLINT(clang-analyzer-core.DivideZero): only called where there is
  }

  int64_t base_offset() const { return 0; }
  int64_t base_bytes() const { return dims_.state_elements() * static_cast<int64_t>(DTypeSize(base_dtype_)); }
  int64_t log_k_offset() const { return log_k_offset_; }
  int64_t log_u_offset() const { return log_u_offset_; }
  int64_t log_g_offset() const { return log_g_offset_; }
  int64_t conv_offset() const { return conv_offset_; }
  // A section of the log: its offset from the slot's start, and the size of one entry, both in floats. log_sections()
  // returns those of k, u and g, in this order.
  struct LogSection {
    int64_t offset, features;
  };
  std::array<LogSection, 3> log_sections() const {
    return {{{log_k_offset_, dims_.key_features()},
             {log_u_offset_, dims_.value_features()},
             {log_g_offset_, dims_.decay_features()}}};
  }
  int64_t slot_floats() const { return slot_floats_; }
  int64_t slot_bytes() const { return slot_floats_ * static_cast<int64_t>(sizeof(float)); }

  friend bool operator==(const StateLayout&, const StateLayout&) = default;

 private:
  LayerDims dims_;
  int32_t max_draft_ = 0;
  DType base_dtype_ = DType::kF32;
  int64_t log_k_offset_ = 0;
  int64_t log_u_offset_ = 0;
  int64_t log_g_offset_ = 0;
  int64_t conv_offset_ = 0;
  int64_t slot_floats_ = 0;
};

// A pool of slots in backend memory: slot s starts at data + s * layout.slot_floats(). Not owned.
struct StatePoolView {
  StateLayout layout;
  float* data = nullptr;
  int32_t slot_count = 0;

  float* slot(int32_t index) const { return data + int64_t{index} * layout.slot_floats(); }
  // Returns the address of value head `hv`, K * V elements, in the base of slot `index`. Element: uint16_t if
  // layout.base_dtype() is kBF16, else float.
  template <typename Element>
  Element* base(int32_t index, int64_t hv) const {
    const LayerDims& dims = layout.dims();
    return reinterpret_cast<Element*>(slot(index) + layout.base_offset()) + hv * dims.key_dim * dims.value_dim;
  }
};

// Returns the numerics id that a server with bases of this dtype reports: the backend's id, followed by "-state=bf16"
// if bases are bfloat16.
std::string NumericsIdFor(std::string_view backend_numerics_id, DType base_dtype);

// Calls function(Element()) with the element type of the layout's bases, uint16_t for bfloat16 or float, and returns
// its result.
template <typename Function>
auto WithBaseElement(const StateLayout& layout, Function&& function) {
  return layout.base_dtype() == DType::kBF16 ? function(uint16_t{}) : function(float{});
}

// Copy a slot's whole base, HV * K * V elements in the slot's own order, to `base` as float32, or from it, rounded to
// the base's dtype. Pool and `base` are host memory.
void ReadBase(const StatePoolView& pool, int32_t slot, float* base);
void WriteBase(const StatePoolView& pool, int32_t slot, const float* base);
// Rounds `count` float32 values to a 16-bit `dtype` in place: they stay float32 in memory. Does nothing for kF32.
void RoundElements(DType dtype, float* values, int64_t count);

// Extends `all` to the slots of `pool`, and to the memory between the two, which also counts as slots. Both have the
// same layout, and their addresses differ by a multiple of the slot size. Returns false, and changes nothing, if the
// slot numbers would overflow an int32.
bool JoinPools(const StatePoolView& pool, StatePoolView* all);
// Returns the number that slot `index` of `pool` has in `all`, which includes `pool` (JoinPools); a negative index is
// returned unchanged.
int32_t SlotIn(const StatePoolView& all, const StatePoolView& pool, int32_t index);

// INVALID_ARGUMENT if pool.data is null or `slot` is not in 0 .. slot_count - 1.
absl::Status ValidateSlot(const StatePoolView& pool, int32_t slot);

}  // namespace gdn
