// What a step must cost at the least: bytes that have to move and operations that have to be done, whatever the
// implementation.
//
// Per token and value head, every form of the delta rule needs S^T k, k u^T and S^T q: 3 K V multiply-adds = 6 K V
// operations. The chunked form does more than that to do it faster; its extra work is not counted as useful. A state is
// moved once a call; activations are counted where they enter or leave the call, not in between. Thread safety: plain
// values and free functions.
//
//   Cost cost = DecodeDeferredCost(dims, /*batch=*/32);
//   LimitTime limit = LimitOf(cost, rates);  // limit.seconds; limit.memory_bound
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "base/layer_dims.h"
#include "base/weight_format.h"

namespace gdn::bench {

struct Cost {
  double bytes_read = 0;
  double bytes_written = 0;
  double flops = 0;
  int64_t tokens = 0;
};

// `state` is the dtype of the states' bases.

// A decode step of one token for each of `batch` sessions. Deferred: the base read once, written every L-th step; (L -
// 1) / 2 log entries read on average, one written. In place: the state read and written.
Cost DecodeDeferredCost(const LayerDims& dims, int64_t batch, DType state = DType::kF32);
Cost DecodeInPlaceCost(const LayerDims& dims, int64_t batch, DType state = DType::kF32);

// A prefill of `sequences`, each of `tokens_each`.
Cost PrefillCost(const LayerDims& dims, int64_t sequences, int64_t tokens_each, DType state = DType::kF32);

// y [rows, out] = x [rows, in] W^T.
Cost ProjectionCost(int64_t rows, int64_t out_features, int64_t in_features, WeightFormat weights);

// The whole layer from hidden_states to output; projection weights are read once a call.
Cost LayerDecodeCost(const LayerDims& dims, DType weight_dtype, int64_t batch, DType state = DType::kF32);
// Of one session, whose base stays as it is; the tokens that a tree's paths share count once.
Cost LayerDraftCost(const LayerDims& dims, DType weight_dtype, int64_t tokens, DType state_dtype);
Cost LayerPrefillCost(const LayerDims& dims, DType weight_dtype, int64_t sequences, int64_t tokens_each,
                      DType state = DType::kF32);

// Elements of the layer's in- and out-projections: (C + HV V + 2 HV) D + D HV V.
int64_t ProjectionElements(const LayerDims& dims);

// How fast a machine moves bytes and multiplies.
struct MachineRates {
  double read_bytes_per_s = 0;    // reading only
  double copy_bytes_per_s = 0;    // from one buffer to another; bytes read plus bytes written
  double update_bytes_per_s = 0;  // in place; bytes read plus bytes written
  double flops_per_s = 0;         // float32 multiply-adds, two operations each

  // For bytes that are written as well as read, the faster way to do both.
  double read_write_bytes_per_s() const {
    return copy_bytes_per_s > update_bytes_per_s ? copy_bytes_per_s : update_bytes_per_s;
  }
};

struct LimitTime {
  double seconds = 0;
  bool memory_bound = false;  // else bound by multiply-adds
};

// max(memory, arithmetic), with memory = 2 p / read_write_rate + (bytes_read - p) / read_rate, p = min(bytes_read,
// bytes_written): bytes that are written beside a byte read go at the rate of doing both, the others at the rate of
// reading.
LimitTime LimitOf(const Cost& cost, const MachineRates& rates);

}  // namespace gdn::bench
