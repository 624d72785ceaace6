// Maps GGUF's tensor types that a layer's weights may have to base/weight_format.h.
//
// Thread safety: a free function.
//
//   if (const auto format = WeightFormatOf(tensor.type)) ...
#pragma once

#include <optional>

#include "base/weight_format.h"
#include "server/checkpoint/gguf_file.h"

namespace gdn {

// Returns nothing for a type that is not supported.
std::optional<WeightFormat> WeightFormatOf(GgmlType type);

}  // namespace gdn
