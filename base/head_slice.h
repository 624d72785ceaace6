// Which of a model's value heads a server has: a slice of every Gated DeltaNet layer, with the key heads that it reads.
//
// The gated norm goes by value head and the out-projection sums over them, so a layer of a slice is a layer of smaller
// dims whose output is one term of the whole layer's. Heads are counted as in the served form: value head hv reads key
// head hv / (HV / H), whatever the order that a file has them in.
// Thread safety: plain values and free functions.
//
//   GDN_ASSIGN_OR_RETURN(const HeadSlice heads, ParseHeadSlice("0-15/32"));
//   GDN_RETURN_IF_ERROR(CheckHeadSlice(heads, dims));
//   const LayerDims own = SliceDims(dims, heads);  // HV 16
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/layer_dims.h"

namespace gdn {

struct HeadSlice {
  int32_t first = 0;  // of the value heads
  int32_t count = 0;
  int32_t total = 0;  // of the model; 0 with the others: all of them, however many

  int32_t end() const { return first + count; }
  bool is_whole() const { return count == total; }

  friend bool operator==(const HeadSlice&, const HeadSlice&) = default;
};

// "0-15/32": value heads 0 to 15, both included, of 32. INVALID_ARGUMENT (INVALID_SPEC: heads) for another text, and
// for heads that are not among so many.
absl::StatusOr<HeadSlice> ParseHeadSlice(std::string_view text);

// As above; "all" for one of all heads.
std::string HeadSliceToString(const HeadSlice& heads);

// Of a model of `dims`: INVALID_ARGUMENT (INVALID_SPEC: heads) where it has another number of value heads, or where the
// slice cuts the group of those that read one key head.
absl::Status CheckHeadSlice(const HeadSlice& heads, const LayerDims& dims);

// The dims of a layer of these heads. The slice has been checked.
LayerDims SliceDims(const LayerDims& dims, const HeadSlice& heads);
// The dims that `own` is a slice of.
LayerDims WholeDims(const LayerDims& own, const HeadSlice& heads);

// What stands for a slice's layers where a model's fingerprint does for all of them: 32 hexadecimal digits, unlike the
// model's own and those of other slices. The model's own for all heads.
std::string SliceFingerprint(const std::string& model, const HeadSlice& heads);

// A slice and what it is of.
struct ModelSlice {
  HeadSlice heads = {};
  std::string model_fingerprint = {};  // of all heads; "" where the slice is none

  friend bool operator==(const ModelSlice&, const ModelSlice&) = default;
};

}  // namespace gdn
