// The least cost of a step in any implementation: bytes that must be moved and operations that must be done.
//
// Per token and value head, every form of the delta rule needs S^T k, k u^T and S^T q: 3 K V multiply-adds = 6 K V
// operations. The chunked form does extra work to be faster, which does not count. A state is moved once a call.
// Activations count where they enter or leave the call, not in between. Thread safety: plain values and free functions.
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

// The least cost of a decode step of one token for each of `batch` sessions, whose bases have dtype `state`. Deferred:
// reads the base once, writes it every L-th step (L: kLogCapacity), reads (L - 1) / 2 log entries on average and writes
// one. In place: reads and writes the state.
Cost DecodeDeferredCost(const LayerDims& dims, int64_t batch, DType state = DType::kF32);
Cost DecodeInPlaceCost(const LayerDims& dims, int64_t batch, DType state = DType::kF32);

// The least cost of a prefill of `sequences` sequences, each of `tokens_each` tokens. `state`: dtype of their bases.
Cost PrefillCost(const LayerDims& dims, int64_t sequences, int64_t tokens_each, DType state = DType::kF32);

// Returns the cost of y = x W^T for x [rows, in_features] and W [out_features, in_features].
Cost ProjectionCost(int64_t rows, int64_t out_features, int64_t in_features, WeightFormat weights);

// The least cost of a whole layer, from hidden_states to output. Projection weights, of `format`, are read once a call.
// `state`: dtype of the bases.
Cost LayerDecodeCost(const LayerDims& dims, WeightFormat format, int64_t batch, DType state = DType::kF32);
// The cost of a draft of one session, which does not write the base. Tokens that paths of a tree share count once.
Cost LayerDraftCost(const LayerDims& dims, WeightFormat format, int64_t tokens, DType state_dtype);
Cost LayerPrefillCost(const LayerDims& dims, WeightFormat format, int64_t sequences, int64_t tokens_each,
                      DType state = DType::kF32);

// Returns the number of weights of the layer's in- and out-projections: (C + HV V + 2 HV) D + D HV V.
int64_t ProjectionElements(const LayerDims& dims);
// Returns the bytes of these weights in a file.
int64_t ProjectionBytes(const LayerDims& dims, WeightFormat format);

// A machine's rates of memory traffic and arithmetic.
struct MachineRates {
  double read_bytes_per_s = 0;    // reading only
  double copy_bytes_per_s = 0;    // copying between two buffers; bytes read plus bytes written
  double update_bytes_per_s = 0;  // updating in place; bytes read plus bytes written
  double flops_per_s = 0;         // float32 multiply-adds, two operations each

  // Returns the rate of traffic that both reads and writes: the faster of copying and updating in place.
  double read_write_bytes_per_s() const {
    return copy_bytes_per_s > update_bytes_per_s ? copy_bytes_per_s : update_bytes_per_s;
  }
};

struct LimitTime {
  double seconds = 0;
  bool memory_bound = false;  // true: bound by memory; false: by multiply-adds
};

// The least time of a cost: max(memory, arithmetic). With p = min(bytes_read, bytes_written), memory = 2 p /
// read_write_rate + (bytes_read - p) / read_rate + 2 (bytes_written - p) / read_write_rate. So a byte written together
// with a byte read takes the combined rate, and a byte written alone costs as much as such a pair.
LimitTime LimitOf(const Cost& cost, const MachineRates& rates);

}  // namespace gdn::bench
