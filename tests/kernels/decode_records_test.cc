// Decodes of one token a sequence by the records that MixerInput leaves: the bits of decodes that find everything by
// themselves, one sequence at a time.

#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/random.h"
#include "tests/support/test_backend.h"

namespace gdn::decode_records_test {
namespace {

constexpr int32_t kMaxDraft = 3;
constexpr int32_t kSlots = 6;

// Sequences of a step; one without a token, one of padding, and a fork whose base is in slot 5 until it folds.
constexpr int32_t kSequences = 5;
const std::vector<int32_t> kCuSeqlens = {0, 1, 2, 2, 3, 4};
const std::vector<int32_t> kSlotsOfSequences = {4, 0, 3, -1, 2};

LayerDims Dims(int32_t key_heads, int32_t value_heads, int32_t key_dim, int32_t value_dim) {
  LayerDims dims = OperatorDims(key_heads, value_heads, key_dim, value_dim);
  dims.hidden_size = 8;
  dims.conv_width = 4;
  return dims;
}

// One way to step the same sessions.
class Sessions {
 public:
  Sessions(Backend& backend, const LayerDims& dims, const std::vector<float>& slots)
      : backend_(backend), dims_(dims), pool_(dims, kSlots, kMaxDraft) {
    for (int32_t i = 0; i < kSlots; ++i) {
      std::copy_n(slots.begin() + i * pool_.slot(i).size(), pool_.slot(i).size(), pool_.slot(i).begin());
    }
  }

  // Steps sequences [first, last); returns their outputs.
  std::vector<float> Step(const std::vector<float>& qkvz, const std::vector<float>& ba, int32_t first, int32_t last,
                          bool draft, bool with_records) {
    std::vector<int32_t> cu_seqlens;
    for (int32_t i = first; i <= last; ++i) cu_seqlens.push_back(kCuSeqlens[i] - kCuSeqlens[first]);
    const int64_t tokens = cu_seqlens.back();
    const PackedBatch batch{
        .sequences = last - first, .cu_seqlens = cu_seqlens.data(), .slots = kSlotsOfSequences.data() + first};
    const int64_t row = kCuSeqlens[first];
    std::vector<float> convolved(tokens * dims_.conv_channels()), z(tokens * dims_.value_features());
    std::vector<float> q(tokens * dims_.key_features()), k(q.size()), g(tokens * dims_.value_heads), beta(g.size());
    std::vector<float> scratch(tokens * (dims_.conv_channels() + 2 * dims_.value_heads)), output(z.size(), -7.0f);
    std::vector<float> records(with_records ? backend_.DecodeRecordFloats(pool_.view().layout, batch) : 0, -7.0f);
    float* records_data = records.empty() ? nullptr : records.data();
    EXPECT_EQ(backend_.MixerInput({.pool = pool_.view(),
                                   .batch = batch,
                                   .token_counts = counts_.data() + first,
                                   .qkvz = qkvz.data() + row * (dims_.conv_channels() + dims_.value_features()),
                                   .ba = ba.data() + row * 2 * dims_.value_heads,
                                   .split_scratch = scratch.data(),
                                   .conv_weight = weights_.conv.data(),
                                   .a_log = weights_.a_log.data(),
                                   .dt_bias = weights_.dt_bias.data(),
                                   .scale = 0.3f,
                                   .convolved = convolved.data(),
                                   .z = z.data(),
                                   .q = q.data(),
                                   .k = k.data(),
                                   .g = g.data(),
                                   .beta = beta.data(),
                                   .records = records_data,
                                   .log_lengths = log_lengths_.data() + first,
                                   .base_slots = base_slots_.data() + first}),
              absl::OkStatus());
    std::vector<int32_t> log_lengths(log_lengths_.begin() + first, log_lengths_.begin() + last);
    EXPECT_EQ(backend_.DeltaRuleDecode({.rule = {.pool = pool_.view(),
                                                 .batch = batch,
                                                 .q = q.data(),
                                                 .k = k.data(),
                                                 .v = convolved.data() + 2 * dims_.key_features(),
                                                 .g = g.data(),
                                                 .beta = beta.data(),
                                                 .q_stride = dims_.key_features(),
                                                 .k_stride = dims_.key_features(),
                                                 .v_stride = dims_.conv_channels(),
                                                 .output = output.data()},
                                        .log_lengths = log_lengths.data(),
                                        .base_slots = base_slots_.data() + first,
                                        .draft = draft,
                                        .records = records_data}),
              absl::OkStatus());
    used_records_ |= !records.empty();
    Append(g, output);
    Append(beta, output);
    if (draft) return output;  // dropped: nothing has changed
    for (int32_t i = first; i < last; ++i) {
      if (kSlotsOfSequences[i] < 0 || kCuSeqlens[i + 1] == kCuSeqlens[i]) continue;
      log_lengths_[i] = log_lengths[i - first];
      ++counts_[i];
      if (log_lengths_[i] == 0) base_slots_[i] = kSlotsOfSequences[i];
    }
    return output;
  }

  std::vector<float> slot(int32_t index) {
    return std::vector<float>(pool_.slot(index).begin(), pool_.slot(index).end());
  }
  bool used_records() const { return used_records_; }

  struct Weights {
    std::vector<float> conv, a_log, dt_bias;
  };
  void set_weights(Weights weights) { weights_ = std::move(weights); }

 private:
  Backend& backend_;
  const LayerDims dims_;
  HostStatePool pool_;
  Weights weights_;
  std::vector<int32_t> log_lengths_ = {3, 14, 5, 9, 0};
  std::vector<int32_t> base_slots_ = {4, 5, 3, -1, 2};
  std::vector<int64_t> counts_ = {19, 30, 5, 0, (int64_t{1} << 33) + 7};
  bool used_records_ = false;
};

using DecodeRecords = BackendTest;
GDN_ON_BACKENDS(DecodeRecords, HostBackends());

TEST_P(DecodeRecords, StepsHaveTheBitsOfThoseThatFindEverythingThemselves) {
  // Rows that fill the lanes and that do not; heads that a block shares, an odd one, and more than it has room for.
  const LayerDims shapes[] = {
      Dims(2, 4, 128, 32), Dims(3, 3, 128, 16), Dims(2, 4, 96, 48), Dims(1, 5, 128, 16),
      Dims(1, 2, 64, 32),  Dims(2, 2, 256, 16), Dims(1, 1, 36, 64), Dims(1, 3, 128, 24),
      Dims(1, 2, 30, 16),  Dims(4, 24, 64, 128)};  // the last: waves with several sets of columns
  int shapes_with_records = 0;
  for (const LayerDims& dims : shapes) {
    SCOPED_TRACE(LayerDimsToString(dims));
    Random random(41);
    const auto floats = static_cast<int64_t>(HostStatePool(dims, kSlots, kMaxDraft).slot(0).size()) * kSlots;
    const std::vector<float> slots = random.Normal(floats, 0.3f);
    const Sessions::Weights weights{.conv = random.Normal(dims.conv_channels() * dims.conv_width),
                                    .a_log = random.Normal(dims.value_heads),
                                    .dt_bias = random.Normal(dims.value_heads)};
    Sessions together(backend(), dims, slots);
    Sessions alone(backend(), dims, slots);
    together.set_weights(weights);
    alone.set_weights(weights);
    for (int step = 0; step < 2 * kLogCapacity; ++step) {
      SCOPED_TRACE(step);
      const bool draft = step % 5 == 4;
      const int64_t tokens = kCuSeqlens.back();
      const std::vector<float> qkvz = random.Normal(tokens * (dims.conv_channels() + dims.value_features()));
      const std::vector<float> ba = random.Normal(tokens * 2 * dims.value_heads);
      const std::vector<float> with = together.Step(qkvz, ba, 0, kSequences, draft, /*with_records=*/true);
      std::vector<float> outputs, gates;
      std::vector<float> g, beta;
      for (int32_t i = 0; i < kSequences; ++i) {
        if (kCuSeqlens[i + 1] == kCuSeqlens[i]) continue;
        const std::vector<float> one = alone.Step(qkvz, ba, i, i + 1, draft, /*with_records=*/false);
        const auto end = one.begin() + dims.value_features();
        outputs.insert(outputs.end(), one.begin(), end);
        g.insert(g.end(), end, end + dims.value_heads);
        beta.insert(beta.end(), end + dims.value_heads, one.end());
      }
      Append(g, outputs);
      Append(beta, outputs);
      EXPECT_TRUE(BitEqual(with, outputs));
      for (int32_t i = 0; i < kSlots; ++i) EXPECT_TRUE(BitEqual(together.slot(i), alone.slot(i))) << "slot " << i;
      if (HasFailure()) return;
    }
    shapes_with_records += together.used_records() ? 1 : 0;
  }
  // Waves of 64 lanes do without where rows fill them.
  EXPECT_GE(shapes_with_records, on_cpu() ? 0 : GetParam() == "host32" ? 8 : 4);
}

}  // namespace
}  // namespace gdn::decode_records_test
