// Recorded inputs and outputs of a model's GDN layers: an `io.safetensors` of reference vectors.
//
// Tensors of layer L, for a batch of B sequences: `layer.L.prefill.in`, `.out` [B, T, D]; `layer.L.decode.S.in`, `.out`
// [B, 1, D] for steps S = 0, 1, ..; `layer.L.whole.in`, `.out` [B, T', D], one pass over a whole sequence; after the
// last step `layer.L.conv_state` [B, C, n] (newest column last, n >= W - 1) and `layer.L.recurrent_state` [B, HV, K,
// V]. A layer may lack `whole`. If there are `layer.L.conv_state_hf_order` and `layer.L.recurrent_state_hf_order` (for
// GGUF files, whose heads are in another order), they replace these two. Other tensors are ignored.
// Thread safety: plain values once read. Ownership: everything is copied out of the file.
//
//   GDN_ASSIGN_OR_RETURN(GoldenIo io, ReadGoldenIo("io.safetensors"));
//   absl::Span<const float> x = io.layers[0].prefill_in.Tokens(/*sequence=*/1, /*first=*/0, /*count=*/7);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace gdn {

struct GoldenTensor {
  std::vector<int64_t> shape;  // [B, ...], B: number of sequences
  std::vector<float> values;

  // Returns all values of one sequence.
  absl::Span<const float> Sequence(int64_t sequence) const;
  // Returns tokens [first, first + count) of a sequence, [count, D], of a [B, T, D] tensor.
  absl::Span<const float> Tokens(int64_t sequence, int64_t first, int64_t count) const;
};

struct GoldenLayer {
  int32_t layer = 0;
  GoldenTensor prefill_in, prefill_out;             // [B, T, D]
  std::vector<GoldenTensor> decode_in, decode_out;  // by step, each [B, 1, D]
  GoldenTensor whole_in, whole_out;                 // [B, T', D]; empty if the layer's whole pass is not recorded
  GoldenTensor conv_state;       // [B, C, n]: C conv channels, the n >= W - 1 last inputs of each, newest last
  GoldenTensor recurrent_state;  // [B, HV, K, V]

  bool has_whole() const { return !whole_in.shape.empty(); }
};

struct GoldenIo {
  int64_t batch = 0;          // B, number of sequences
  int64_t prompt_tokens = 0;  // T, tokens of each sequence's prefill
  int64_t decode_steps = 0;
  int64_t hidden_size = 0;          // D, features of a token
  std::vector<GoldenLayer> layers;  // ascending by layer, at least one
};

// Reads a recording, with at least one layer, token and decode step. Errors of SafetensorsFile::Open. INVALID_ARGUMENT,
// with the tensor's name, if a tensor is missing or does not fit the others.
absl::StatusOr<GoldenIo> ReadGoldenIo(const std::string& path);

}  // namespace gdn
