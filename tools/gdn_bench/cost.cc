#include "tools/gdn_bench/cost.h"

#include <algorithm>

#include "kernels/common/state_layout.h"

namespace gdn::bench {
namespace {

constexpr double kFloat = sizeof(float);

double StateBytes(const LayerDims& dims, DType state) {
  return static_cast<double>(DTypeSize(state)) * static_cast<double>(dims.state_elements());
}

double RecurrenceFlops(const LayerDims& dims) { return 6.0 * static_cast<double>(dims.state_elements()); }

double ConvStateBytes(const LayerDims& dims) {
  return kFloat * static_cast<double>(dims.conv_channels() * (dims.conv_width - 1));
}

// One session's state that is read and written once.
Cost WholeState(const LayerDims& dims, DType state) {
  return {.bytes_read = StateBytes(dims, state), .bytes_written = StateBytes(dims, state)};
}

// One session's state in a deferred step.
Cost DeferredState(const LayerDims& dims, DType state) {
  const double log_entry =
      kFloat * static_cast<double>(dims.key_features() + dims.value_features() + dims.decay_features());
  return {.bytes_read = StateBytes(dims, state) + log_entry * (kLogCapacity - 1) / 2.0,
          .bytes_written = StateBytes(dims, state) / kLogCapacity + log_entry};
}

// q, k, v, g, beta in; o out; and the states of `sessions`.
Cost OperatorCost(const LayerDims& dims, int64_t tokens, const Cost& state, double sessions) {
  const double count = static_cast<double>(tokens);
  const auto inputs = static_cast<double>(2 * dims.key_features() + dims.value_features() + dims.decay_features() +
                                          int64_t{dims.value_heads});
  return {.bytes_read = count * kFloat * inputs + sessions * state.bytes_read,
          .bytes_written = count * kFloat * static_cast<double>(dims.value_features()) + sessions * state.bytes_written,
          .flops = count * RecurrenceFlops(dims),
          .tokens = tokens};
}

int64_t InOutputs(const LayerDims& dims) {
  return dims.conv_channels() + dims.value_features() + 2 * int64_t{dims.value_heads};
}

Cost LayerCost(const LayerDims& dims, WeightFormat format, int64_t tokens, const Cost& state, double sessions) {
  const double count = static_cast<double>(tokens);
  const double channels = static_cast<double>(dims.conv_channels());
  const double hidden = static_cast<double>(dims.hidden_size);
  const double weights = static_cast<double>(ProjectionElements(dims));
  return {.bytes_read = static_cast<double>(ProjectionBytes(dims, format)) +
                        kFloat * (count * hidden + channels * dims.conv_width) + sessions * state.bytes_read,
          .bytes_written = kFloat * count * hidden + sessions * state.bytes_written,
          .flops = count * (2 * weights + 2 * channels * dims.conv_width + RecurrenceFlops(dims)),
          .tokens = tokens};
}

}  // namespace

Cost DecodeDeferredCost(const LayerDims& dims, int64_t batch, DType state) {
  return OperatorCost(dims, batch, DeferredState(dims, state), static_cast<double>(batch));
}

Cost DecodeInPlaceCost(const LayerDims& dims, int64_t batch, DType state) {
  return OperatorCost(dims, batch, WholeState(dims, state), static_cast<double>(batch));
}

Cost PrefillCost(const LayerDims& dims, int64_t sequences, int64_t tokens_each, DType state) {
  return OperatorCost(dims, sequences * tokens_each, WholeState(dims, state), static_cast<double>(sequences));
}

Cost ProjectionCost(int64_t rows, int64_t out_features, int64_t in_features, WeightFormat weights) {
  const double r = static_cast<double>(rows);
  const double out = static_cast<double>(out_features);
  const double in = static_cast<double>(in_features);
  return {.bytes_read = out * static_cast<double>(RowBytes(weights, in_features)) + kFloat * r * in,
          .bytes_written = kFloat * r * out,
          .flops = 2 * r * out * in,
          .tokens = rows};
}

int64_t ProjectionElements(const LayerDims& dims) {
  return InOutputs(dims) * dims.hidden_size + dims.value_features() * dims.hidden_size;
}

int64_t ProjectionBytes(const LayerDims& dims, WeightFormat format) {
  return InOutputs(dims) * RowBytes(format, dims.hidden_size) +
         dims.hidden_size * RowBytes(format, dims.value_features());
}

Cost LayerDecodeCost(const LayerDims& dims, WeightFormat format, int64_t batch, DType state_dtype) {
  Cost state = DeferredState(dims, state_dtype);
  state.bytes_read += ConvStateBytes(dims);
  state.bytes_written += kFloat * static_cast<double>(dims.conv_channels());
  return LayerCost(dims, format, batch, state, static_cast<double>(batch));
}

Cost LayerDraftCost(const LayerDims& dims, WeightFormat format, int64_t tokens, DType state_dtype) {
  const double entry =
      kFloat * static_cast<double>(dims.key_features() + dims.value_features() + dims.decay_features());
  Cost state = DeferredState(dims, state_dtype);
  state.bytes_read += ConvStateBytes(dims);
  state.bytes_written = static_cast<double>(tokens) * (entry + kFloat * static_cast<double>(dims.conv_channels()));
  return LayerCost(dims, format, tokens, state, /*sessions=*/1);
}

Cost LayerPrefillCost(const LayerDims& dims, WeightFormat format, int64_t sequences, int64_t tokens_each,
                      DType state_dtype) {
  Cost state = WholeState(dims, state_dtype);
  state.bytes_read += ConvStateBytes(dims);
  state.bytes_written += ConvStateBytes(dims);
  return LayerCost(dims, format, sequences * tokens_each, state, static_cast<double>(sequences));
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
