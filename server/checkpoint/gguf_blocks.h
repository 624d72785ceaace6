// Decoding GGUF's quantised blocks: each element by its type's formula, in float32.
//
//   Q8_0  32 weights:  f16 d, 32 int8 q                          w = d q
//   Q4_0  32 weights:  f16 d, 16 bytes of 4-bit q                w = d (q - 8); the low halves come first
//   Q4_K  256 weights: f16 d, f16 m, 8 pairs of 6-bit (s, t), 4-bit q      w = d s q - m t, a pair for 32 weights
//   Q5_K  256 weights: as Q4_K, with a fifth bit of q
//   Q6_K  256 weights: 6-bit q, 16 int8 s, f16 d                 w = d s (q - 32), an s for 16
// Thread safety: free functions on the caller's memory.
// Source of the formats: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md and ggml/src/ggml-common.h
//
//   if (DecodesGgml(tensor.type)) DecodeGgml(tensor.type, tensor.data, out);
#pragma once

#include <string_view>

#include "server/checkpoint/gguf_file.h"

namespace gdn {

// The types above.
bool DecodesGgml(GgmlType type);

// Whole blocks of such a type; writes as many elements as they hold.
void DecodeGgml(GgmlType type, std::string_view blocks, float* out);

}  // namespace gdn
