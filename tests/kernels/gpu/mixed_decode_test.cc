// A decode between the projections in one launch: the bits of the three operators that it replaces, in outputs and in
// all of every slot, of all layouts, gates and positions in the log.
#include "kernels/mixed_decode/mixed_decode.h"

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/aligned_buffer.h"
#include "base/dtype.h"
#include "gtest/gtest.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/test_backend.h"

namespace gdn::mixed_decode_test {
namespace {

constexpr int32_t kMaxDraft = 3;
constexpr int32_t kSlots = 6;

// One sequence without a token, one of padding, and a fork whose base is in slot 5 until it folds.
constexpr int32_t kSequences = 5;
const std::vector<int32_t> kCuSeqlens = {0, 1, 2, 2, 3, 4};
const std::vector<int32_t> kSlotsOfSequences = {4, 0, 3, -1, 2};

enum class Inputs { kFlat, kInterleaved, kSplit };

struct Kind {
  LayerDims dims;
  DType base = DType::kF32;
  Inputs inputs = Inputs::kFlat;
  ALogConvention a_log = ALogConvention::kRaw;
  DecayGate decay = DecayGate::kSoftplus;
  GateActivation gate = GateActivation::kSilu;
  float beta_scale = 1.0f;
  bool tiled = false;
};

// With decays by channel.
Kind ByChannel(Kind kind) {
  kind.dims.decay = DecayKind::kPerChannel;
  kind.inputs = Inputs::kSplit;
  return kind;
}

LayerDims Dims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  LayerDims dims = OperatorDims(key_heads, value_heads, key_dim, value_dim);
  dims.hidden_size = 8;
  dims.conv_width = 4;
  return dims;
}

// Sessions that step in one of two ways, from equal slots.
class Sessions {
 public:
  Sessions(Backend& backend, const Kind& kind) : backend_(backend), kind_(kind) {
    pool_ = {.layout = *StateLayout::Make(kind.dims, kMaxDraft, kind.base), .data = nullptr, .slot_count = kSlots};
    const int64_t floats = kSlots * pool_.layout.slot_floats();
    memory_ = AlignedBuffer<float>(static_cast<size_t>(floats));
    pool_.data = memory_.data();
    Random random(41);
    // Small numbers as float32, and both halves of each as bfloat16.
    const std::vector<float> values = random.Normal(2 * floats, 0.3f);
    for (int64_t i = 0; i < floats; ++i) {
      uint32_t halves[2];
      std::memcpy(halves, values.data() + 2 * i, sizeof(halves));
      const uint32_t bits = (halves[0] & 0xffff0000u) | halves[1] >> 16;
      std::memcpy(memory_.data() + i, &bits, sizeof(bits));
    }
    conv_ = random.Normal(kind.dims.conv_channels() * 4);
    a_log_ = random.Uniform(kind.dims.value_heads, -1.0f, -0.1f);
    dt_bias_ = random.Normal(kind.dims.decay_features());
    norm_ = random.Normal(kind.dims.value_dim);
  }

  // Steps all sequences by `run`; returns the normed outputs, which are written as bfloat16 terms if `as_terms`. A
  // draft is dropped afterwards.
  template <typename Run>
  std::vector<float> Step(const std::vector<float>& x, const std::vector<float>& of_z, const std::vector<float>& ba,
                          bool draft, bool as_terms, const Run& run) {
    const LayerDims& dims = kind_.dims;
    const int64_t tokens = kCuSeqlens.back();
    const PackedBatch batch{
        .sequences = kSequences, .cu_seqlens = kCuSeqlens.data(), .slots = kSlotsOfSequences.data()};
    std::vector<float> convolved(tokens * dims.conv_channels()), z = of_z;
    std::vector<float> q(tokens * dims.key_features()), k(q.size());
    std::vector<float> g(tokens * dims.decay_features()), beta(tokens * dims.value_heads);
    std::vector<float> scratch(tokens * (dims.conv_channels() + 2 * dims.value_heads)), output(z.size(), -7.0f);
    std::vector<float> normed(z.size(), -7.0f);
    std::vector<int32_t> log_lengths = log_lengths_;
    const bool split = kind_.inputs == Inputs::kSplit;
    MixedDecodeParams params;
    params.input = {
        .pool = pool_,
        .batch = batch,
        .token_counts = counts_.data(),
        .layout = kind_.inputs == Inputs::kInterleaved ? ProjectionLayout::kInterleaved : ProjectionLayout::kFlat,
        .qkvz = split ? nullptr : x.data(),
        .ba = split ? nullptr : ba.data(),
        .split_scratch = scratch.data(),
        .mixed_qkv = split ? x.data() : nullptr,
        .b = split ? ba.data() : nullptr,
        .a = split ? ba.data() + tokens * dims.value_heads : nullptr,
        .conv_weight = conv_.data(),
        .a_log_convention = kind_.a_log,
        .decay_gate = kind_.decay,
        .decay_lower_bound = -2.0f,
        .beta_scale = kind_.beta_scale,
        .a_log = a_log_.data(),
        .dt_bias = dt_bias_.data(),
        .scale = 0.3f,
        .convolved = convolved.data(),
        .z = z.data(),
        .q = q.data(),
        .k = k.data(),
        .g = g.data(),
        .beta = beta.data()};
    params.decode = {.rule = {.pool = pool_,
                              .batch = batch,
                              .q = q.data(),
                              .k = k.data(),
                              .v = convolved.data() + 2 * dims.key_features(),
                              .g = g.data(),
                              .beta = beta.data(),
                              .q_stride = dims.key_features(),
                              .k_stride = dims.key_features(),
                              .v_stride = dims.conv_channels(),
                              .output = output.data(),
                              .max_beta = kind_.beta_scale},
                     .log_lengths = log_lengths.data(),
                     .base_slots = base_slots_.data(),
                     .draft = draft};
    params.norm = {.gate = kind_.gate,
                   .value_dim = dims.value_dim,
                   .rows = tokens * dims.value_heads,
                   .epsilon = 1e-5f,
                   .x = output.data(),
                   .z = z.data(),
                   .weight = norm_.data(),
                   .y = normed.data(),
                   .key_heads = kind_.tiled ? dims.key_heads : 1,
                   .group = kind_.tiled ? dims.group() : 1};
    EXPECT_EQ(ValidateMixedDecode(params), absl::OkStatus());
    std::vector<uint16_t> terms(as_terms ? 3 * normed.size() : 0);
    if (as_terms) params.norm.terms = terms.data();
    EXPECT_EQ(run(params), absl::OkStatus());
    for (size_t i = 0; i < terms.size() / 3; ++i) {
      const uint16_t* const of = terms.data() + i;
      const bool one = of[normed.size()] == 0 && of[2 * normed.size()] == 0;  // its zero may be negative
      normed[i] = one ? BF16ToFloat(of[0])
                      : BF16ToFloat(of[0]) + (BF16ToFloat(of[normed.size()]) + BF16ToFloat(of[2 * normed.size()]));
    }
    if (draft) return normed;
    for (int32_t i = 0; i < kSequences; ++i) {
      if (kSlotsOfSequences[i] < 0 || kCuSeqlens[i + 1] == kCuSeqlens[i]) continue;
      log_lengths_[i] = log_lengths[i];
      ++counts_[i];
      if (log_lengths_[i] == 0) base_slots_[i] = kSlotsOfSequences[i];
    }
    return normed;
  }

  // All of the pool.
  std::vector<float> slots() const {
    return std::vector<float>(memory_.data(), memory_.data() + kSlots * pool_.layout.slot_floats());
  }
  const std::vector<int32_t>& log_lengths() const { return log_lengths_; }

 private:
  Backend& backend_;
  const Kind kind_;
  StatePoolView pool_;
  AlignedBuffer<float> memory_;
  std::vector<float> conv_, a_log_, dt_bias_, norm_;
  std::vector<int32_t> log_lengths_ = {3, 14, 5, 9, 0};
  std::vector<int32_t> base_slots_ = {4, 5, 3, -1, 2};
  std::vector<int64_t> counts_ = {19, 30, 5, 0, (int64_t{1} << 33) + 7};
};

using MixedDecode = BackendTest;
GDN_ON_BACKENDS(MixedDecode, HostBackends());

TEST_P(MixedDecode, HasTheBitsOfTheThreeOperators) {
  if (on_cpu()) GTEST_SKIP() << "a CPU calls the three";
  const Kind kinds[] = {
      {.dims = Dims(2, 4, 128, 128)},
      {.dims = Dims(1, 3, 128, 64), .base = DType::kBF16, .inputs = Inputs::kSplit, .gate = GateActivation::kSigmoid},
      {.dims = Dims(2, 4, 96, 192),
       .inputs = Inputs::kInterleaved,
       .a_log = ALogConvention::kNegativeExp,
       .tiled = true},
      {.dims = Dims(16, 48, 96, 192), .base = DType::kBF16, .tiled = true},
      {.dims = Dims(1, 1, 64, 36), .decay = DecayGate::kBoundedSigmoid, .beta_scale = 2.0f},
      {.dims = Dims(1, 2, 36, 256), .inputs = Inputs::kSplit, .decay = DecayGate::kBoundedSigmoid},
      {.dims = Dims(3, 6, 60, 20), .base = DType::kBF16, .inputs = Inputs::kInterleaved},
      {.dims = Dims(1, 8, 128, 132), .a_log = ALogConvention::kNegativeExp, .beta_scale = 2.0f},
      ByChannel({.dims = Dims(4, 4, 128, 128), .gate = GateActivation::kSigmoid}),
      ByChannel({.dims = Dims(1, 2, 64, 64), .base = DType::kBF16, .decay = DecayGate::kBoundedSigmoid}),
      ByChannel(
          {.dims = Dims(2, 4, 128, 192), .base = DType::kBF16, .a_log = ALogConvention::kNegativeExp, .tiled = true}),
      ByChannel({.dims = Dims(1, 1, 64, 256), .beta_scale = 2.0f})};
  for (const Kind& kind : kinds) {
    SCOPED_TRACE(LayerDimsToString(kind.dims));
    Random random(5);
    Sessions fused(backend(), kind), apart(backend(), kind);
    const gpu::Stream stream = *GpuStreamOf(backend());
    const int64_t tokens = kCuSeqlens.back();
    const bool split = kind.inputs == Inputs::kSplit;
    const int steps = kind.dims.value_heads > 16 ? 3 : kLogCapacity + 4;
    for (int step = 0; step < steps; ++step) {
      SCOPED_TRACE(step);
      const bool draft = step % 5 == 4;
      const bool as_terms = stream.wave_width == 32 && step % 2 == 1;
      const int64_t z_features = kind.dims.value_features();
      const std::vector<float> x = random.Normal(tokens * (kind.dims.conv_channels() + (split ? 0 : z_features)));
      const std::vector<float> z = random.Normal(tokens * z_features);
      const std::vector<float> ba = random.Normal(tokens * (kind.dims.value_heads + kind.dims.decay_features()));
      const std::vector<float> expected =
          apart.Step(x, z, ba, draft, /*as_terms=*/false, [&](const MixedDecodeParams& p) {
            absl::Status status = backend().MixerInput(p.input);
            if (status.ok()) status = backend().DeltaRuleDecode(p.decode);
            return status.ok() ? backend().GatedRmsNorm(p.norm) : status;
          });
      const std::vector<float> outputs = fused.Step(x, z, ba, draft, as_terms, [&](const MixedDecodeParams& p) {
        EXPECT_TRUE(TakesMixedDecodeGpu(p));
        const gpu::DeviceBatch batch{.sequences = kSequences,
                                     .tokens = static_cast<int32_t>(tokens),
                                     .max_length = 1,
                                     .cu_seqlens = p.input.batch.cu_seqlens,
                                     .slots = p.input.batch.slots,
                                     .token_counts = p.input.token_counts,
                                     .log_lengths = p.decode.log_lengths,
                                     .base_slots = p.decode.base_slots};
        return MixedDecodeGpu(p, batch, stream);
      });
      EXPECT_TRUE(BitEqual(outputs, expected));
      EXPECT_TRUE(BitEqual(fused.slots(), apart.slots()));
      EXPECT_EQ(fused.log_lengths(), apart.log_lengths());
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace gdn::mixed_decode_test
