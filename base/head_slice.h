// A slice of a model's value heads, with the key heads that they read: the part of every GDN layer that one server has.
//
// The gated norm works per value head and the output projection sums over value heads. So a slice is a layer of smaller
// dims, and the slices' outputs add up to the whole layer's. Heads are numbered as in the served form (value head hv
// reads key head hv / (HV / H)), even if the checkpoint orders them differently.
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
  int32_t first = 0;  // first value head of the slice
  int32_t count = 0;
  int32_t total = 0;  // value heads of the model; first = count = total = 0: all heads of any model

  int32_t end() const { return first + count; }
  bool is_whole() const { return count == total; }

  friend bool operator==(const HeadSlice&, const HeadSlice&) = default;
};

// Parses "0-15/32": value heads 0 to 15, both included, of 32. INVALID_ARGUMENT (INVALID_SPEC: heads) for any other
// text and for heads beyond the total.
absl::StatusOr<HeadSlice> ParseHeadSlice(std::string_view text);

// The inverse of ParseHeadSlice, but "all" for a slice of all heads.
std::string HeadSliceToString(const HeadSlice& heads);

// OK for HeadSlice{}, which means all heads of any model. INVALID_ARGUMENT (INVALID_SPEC: heads) if the slice has no
// heads or goes beyond its total. The same if a model of `dims` has another number of value heads, or if the slice
// separates value heads that read one key head.
absl::Status CheckHeadSlice(const HeadSlice& heads, const LayerDims& dims);

// Returns the dims of a layer that has only these heads of a model with `dims`. `heads` must have passed
// CheckHeadSlice.
LayerDims SliceDims(const LayerDims& dims, const HeadSlice& heads);
// Returns the dims of the whole model's layer. `own` are the dims of the slice `heads`, as SliceDims returns them.
LayerDims WholeDims(const LayerDims& own, const HeadSlice& heads);

// Returns the fingerprint of a slice's layers. `model` is the whole model's fingerprint: it is returned for all heads.
// Else the result is 32 hexadecimal digits that differ from the model's and from every other slice's.
std::string SliceFingerprint(const std::string& model, const HeadSlice& heads);

// A slice and the model it belongs to.
struct ModelSlice {
  HeadSlice heads = {};
  std::string model_fingerprint = {};  // fingerprint of the whole model; "" if there is no slice

  friend bool operator==(const ModelSlice&, const ModelSlice&) = default;
};

}  // namespace gdn
