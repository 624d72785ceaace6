// A session's states as a safetensors file, and back.
//
// Tensors, for each layer L that has seen a token or a state, all F32:
//   layer.L.conv_state       [C, W - 1]   model sessions; pre-convolution inputs, newest last
//   layer.L.recurrent_state  [HV, K, V]   with an empty log; else only where it was asked for
//   layer.L.base_state       [HV, K, V]   with a log, and then these three as well:
//   layer.L.log_k            [n, H, K]
//   layer.L.log_u            [n, HV, V]
//   layer.L.log_g            [n, HV]
// so a session restored under an equal numerics_id continues bit for bit. __metadata__ has
//   format            "gdn.state"
//   format_version    "1"
//   dims              JSON {"key_heads": 16, "value_heads": 32, "key_dim": 128, "value_dim": 128, "conv_width": 4,
//                     "hidden_size": 2048}
//   layer_count       above every layer index the session has, seen or not
//   model_fingerprint, numerics_id  of the writer; may be left out by other tools
//   log_capacity      needed where a layer has a log
//   layer.L           JSON {"token_count": n, "log_length": n, "input_kind": "hidden_states"}; only the first is needed
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(std::string file, EncodeSnapshot(snapshot));
//   GDN_ASSIGN_OR_RETURN(Snapshot again, DecodeSnapshot(file));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/layer_dims.h"
#include "kernels/backend.h"

namespace gdn {

struct LayerSnapshot {
  int32_t layer = 0;
  int64_t token_count = 0;
  int32_t log_length = 0;
  InputKind input_kind = InputKind::kNone;
  SlotImage image;                     // base and log
  std::vector<float> recurrent_state;  // [HV, K, V] with the log folded in, to be written beside a log; may be empty.
                                       // Never read back: image.base always is
};

struct Snapshot {
  LayerDims dims;
  std::string model_fingerprint;  // "" for an operator session
  std::string numerics_id;
  int32_t layer_count = 0;            // above every layer index the session has, seen or not
  std::vector<LayerSnapshot> layers;  // those with token_count > 0 or a state, ascending
};

// INVALID_ARGUMENT where the parts do not fit each other.
absl::StatusOr<std::string> EncodeSnapshot(const Snapshot& snapshot);

// DATA_LOSS (INVALID_STATE_FILE), naming the tensor or field, where the file is cut, damaged or inconsistent in itself.
// A layer with only `layer.L.recurrent_state` (and, in a model session, conv_state) is a base with no log.
// A log of another log_capacity is not taken over: the recurrent_state beside it is then the base, and without one the
// answer is FAILED_PRECONDITION (STATE_MISMATCH).
absl::StatusOr<Snapshot> DecodeSnapshot(std::string_view file);

}  // namespace gdn
