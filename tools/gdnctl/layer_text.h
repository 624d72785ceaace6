// Describes a model's layers for people.
//
// Thread safety: a free function. Ownership: values.
//
//   for (const LayerSpecLine& line : DescribeLayerSpec(checkpoint.config.spec)) absl::PrintF("%s\n", line.text);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/layer_spec.h"

namespace gdn {

struct LayerSpecLine {
  std::string_view part;
  std::string text;
};

// Returns a line for each part of the layer, in the order of computation.
std::vector<LayerSpecLine> DescribeLayerSpec(const LayerSpec& spec);

}  // namespace gdn
