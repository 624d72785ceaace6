#include "tools/gdn_bench/cost.h"

#include <algorithm>

#include "kernels/common/state_layout.h"

namespace gdn::bench {
namespace {

constexpr double kFloat = sizeof(float);

double StateBytes(const LayerDims& dims) { return kFloat * static_cast<double>(dims.state_elements()); }

double RecurrenceFlops(const LayerDims& dims) { return 6.0 * static_cast<double>(dims.state_elements()); }

// One session's state in a deferred step.
Cost DeferredState(const LayerDims& dims) {
  const double log_entry = kFloat * static_cast<double>(dims.key_features() + dims.value_features() + dims.value_heads);
  Cost cost;
  cost.bytes_read = StateBytes(dims) + log_entry * (kLogCapacity - 1) / 2.0;
  cost.bytes_written = StateBytes(dims) / kLogCapacity + log_entry;
  return cost;
}

// q, k, v, g, beta in; o out.
Cost OperatorActivations(const LayerDims& dims, double tokens) {
  Cost cost;
  cost.bytes_read =
      tokens * kFloat *
      static_cast<double>(2 * dims.key_features() + dims.value_features() + 2 * int64_t{dims.value_heads});
  cost.bytes_written = tokens * kFloat * static_cast<double>(dims.value_features());
  return cost;
}

Cost LayerCost(const LayerDims& dims, DType weight_dtype, double tokens) {
  const double channels = static_cast<double>(dims.conv_channels());
  const double hidden = static_cast<double>(dims.hidden_size);
  const double weights = static_cast<double>(ProjectionElements(dims));
  Cost cost;
  cost.bytes_read =
      weights * static_cast<double>(DTypeSize(weight_dtype)) + kFloat * (tokens * hidden + channels * dims.conv_width);
  cost.bytes_written = kFloat * tokens * hidden;
  cost.flops = tokens * (2 * weights + 2 * channels * dims.conv_width + RecurrenceFlops(dims));
  cost.tokens = static_cast<int64_t>(tokens);
  return cost;
}

void AddTimes(Cost& cost, const Cost& other, double times) {
  cost.bytes_read += times * other.bytes_read;
  cost.bytes_written += times * other.bytes_written;
}

}  // namespace

Cost DecodeDeferredCost(const LayerDims& dims, int64_t batch) {
  const double sessions = static_cast<double>(batch);
  Cost cost = OperatorActivations(dims, sessions);
  AddTimes(cost, DeferredState(dims), sessions);
  cost.flops = sessions * RecurrenceFlops(dims);
  cost.tokens = batch;
  return cost;
}

Cost DecodeInPlaceCost(const LayerDims& dims, int64_t batch) {
  const double sessions = static_cast<double>(batch);
  Cost cost = OperatorActivations(dims, sessions);
  cost.bytes_read += sessions * StateBytes(dims);
  cost.bytes_written += sessions * StateBytes(dims);
  cost.flops = sessions * RecurrenceFlops(dims);
  cost.tokens = batch;
  return cost;
}

Cost PrefillCost(const LayerDims& dims, int64_t tokens) {
  Cost cost = OperatorActivations(dims, static_cast<double>(tokens));
  cost.bytes_read += StateBytes(dims);
  cost.bytes_written += StateBytes(dims);
  cost.flops = static_cast<double>(tokens) * RecurrenceFlops(dims);
  cost.tokens = tokens;
  return cost;
}

Cost ProjectionCost(int64_t rows, int64_t out_features, int64_t in_features, DType weight_dtype) {
  const double r = static_cast<double>(rows);
  const double out = static_cast<double>(out_features);
  const double in = static_cast<double>(in_features);
  return {.bytes_read = out * in * static_cast<double>(DTypeSize(weight_dtype)) + kFloat * r * in,
          .bytes_written = kFloat * r * out,
          .flops = 2 * r * out * in,
          .tokens = rows};
}

int64_t ProjectionElements(const LayerDims& dims) {
  return (dims.conv_channels() + dims.value_features() + 2 * int64_t{dims.value_heads}) * dims.hidden_size +
         dims.value_features() * dims.hidden_size;
}

Cost LayerDecodeCost(const LayerDims& dims, DType weight_dtype, int64_t batch) {
  const double sessions = static_cast<double>(batch);
  Cost cost = LayerCost(dims, weight_dtype, sessions);
  AddTimes(cost, DeferredState(dims), sessions);
  cost.bytes_read += sessions * kFloat * static_cast<double>(dims.conv_channels() * (dims.conv_width - 1));
  cost.bytes_written += sessions * kFloat * static_cast<double>(dims.conv_channels());
  return cost;
}

Cost LayerPrefillCost(const LayerDims& dims, DType weight_dtype, int64_t tokens) {
  Cost cost = LayerCost(dims, weight_dtype, static_cast<double>(tokens));
  const double conv_state = kFloat * static_cast<double>(dims.conv_channels() * (dims.conv_width - 1));
  cost.bytes_read += StateBytes(dims) + conv_state;
  cost.bytes_written += StateBytes(dims) + conv_state;
  return cost;
}

LimitTime LimitOf(const Cost& cost, const MachineRates& rates) {
  const double paired = std::min(cost.bytes_read, cost.bytes_written);
  const double memory = 2 * paired / rates.read_write_bytes_per_s() +
                        (cost.bytes_read - paired) / rates.read_bytes_per_s +
                        2 * (cost.bytes_written - paired) / rates.read_write_bytes_per_s();
  const double arithmetic = cost.flops / rates.flops_per_s;
  return {.seconds = std::max(memory, arithmetic), .memory_bound = memory >= arithmetic};
}

}  // namespace gdn::bench
