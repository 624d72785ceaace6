// Ranges of decoder layers, such as 0-23,30: the layers that a server of several takes of its models (--layers).
//
// Thread safety: plain values and free functions.
//
//   GDN_ASSIGN_OR_RETURN(const LayerRanges ranges, ParseLayerRanges("0-23,30"));
//   GDN_ASSIGN_OR_RETURN(const std::vector<int32_t> layers, GdnLayersIn(ranges, config));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "server/checkpoint/model_config.h"

namespace gdn {

struct LayerRange {
  int32_t first = 0;
  int32_t last = 0;  // included

  friend bool operator==(const LayerRange&, const LayerRange&) = default;
};

// Ascending, without common layers. Empty: all layers of any model.
using LayerRanges = std::vector<LayerRange>;

// Parses ranges of layers, counted from 0 with both ends included: "0-23,30". INVALID_ARGUMENT (INVALID_SPEC: layers)
// for any other text, "" too, for ranges that overlap or do not ascend, and for a layer above 4095.
absl::StatusOr<LayerRanges> ParseLayerRanges(std::string_view text);

// Writes the ranges in the form that ParseLayerRanges reads; "" for no ranges.
std::string LayerRangesToString(const LayerRanges& ranges);

// Returns the model's Gated DeltaNet layers in the ranges, ascending; all of them if there are no ranges.
// INVALID_ARGUMENT (INVALID_SPEC: layers) if a range has a layer that the model lacks, or has no Gated DeltaNet layer.
absl::StatusOr<std::vector<int32_t>> GdnLayersIn(const LayerRanges& ranges, const ModelConfig& config);

}  // namespace gdn
