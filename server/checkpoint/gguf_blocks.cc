#include "server/checkpoint/gguf_blocks.h"

#include <utility>

namespace gdn {

std::optional<WeightFormat> WeightFormatOf(GgmlType type) {
  constexpr std::pair<GgmlType, WeightFormat> kFormats[] = {
      {GgmlType::kF32, WeightFormat::kF32},   {GgmlType::kF16, WeightFormat::kF16},
      {GgmlType::kBF16, WeightFormat::kBF16}, {GgmlType::kQ8_0, WeightFormat::kQ8_0},
      {GgmlType::kQ4_0, WeightFormat::kQ4_0}, {GgmlType::kQ4_K, WeightFormat::kQ4_K},
      {GgmlType::kQ5_K, WeightFormat::kQ5_K}, {GgmlType::kQ6_K, WeightFormat::kQ6_K}};
  for (const auto& [of_file, format] : kFormats) {
    if (of_file == type) return format;
  }
  return std::nullopt;
}

}  // namespace gdn
