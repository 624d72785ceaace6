// Which of GGUF's types a layer's weights may have, as base/weight_format.h calls them.
//
// Thread safety: a free function.
//
//   if (const auto format = WeightFormatOf(tensor.type)) ...
#pragma once

#include <optional>

#include "base/weight_format.h"
#include "server/checkpoint/gguf_file.h"

namespace gdn {

// Empty for a type that is not read.
std::optional<WeightFormat> WeightFormatOf(GgmlType type);

}  // namespace gdn
