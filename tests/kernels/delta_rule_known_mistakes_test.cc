// Mistakes found in write-ups of this operator. Each test shows that the mistake would be seen on these inputs, and
// that every path here computes the true delta rule on them.
#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/decode_slots.h"
#include "tests/support/compare.h"
#include "tests/support/test_backend.h"

namespace gdn::delta_rule_known_mistakes_test {
namespace {

constexpr double kTolerance = 5e-6;  // of the chunked path, the loosest
constexpr double kVisible = 1e-2;    // relative error that a mistake must at least make here
constexpr double kRounding = 1e-12;  // between two forms in double

enum class Mistake { kNone, kDecayMaskSign, kLostUnitDiagonal };

// The chunk form of one head and one chunk in double, with a mistake put in; outputs [tokens, V].
std::vector<double> ChunkFormInDouble(const DeltaRuleInputs& inputs, const std::vector<float>& state, Mistake mistake) {
  const int64_t K = inputs.dims.key_dim;
  const int64_t V = inputs.dims.value_dim;
  const int64_t C = inputs.tokens;
  std::vector<double> sums(C);
  for (int64_t i = 0; i < C; ++i) sums[i] = (i > 0 ? sums[i - 1] : 0.0) + inputs.g[i];
  const auto decay = [&](int64_t i, int64_t j) {
    return std::exp(mistake == Mistake::kDecayMaskSign ? sums[j] - sums[i] : sums[i] - sums[j]);
  };
  const auto dot = [&](const std::vector<float>& a, int64_t i, const std::vector<float>& b, int64_t j) {
    double sum = 0.0;
    for (int64_t n = 0; n < K; ++n) sum += double{a[i * K + n]} * b[j * K + n];
    return sum;
  };
  const auto through_state = [&](const std::vector<float>& a, int64_t i, int64_t column) {
    double sum = 0.0;
    for (int64_t n = 0; n < K; ++n) sum += double{a[i * K + n]} * state[n * V + column];
    return std::exp(sums[i]) * sum;
  };
  std::vector<double> u(C * V);
  std::vector<double> output(C * V);
  for (int64_t column = 0; column < V; ++column) {
    for (int64_t i = 0; i < C; ++i) {
      const double x = inputs.beta[i] * (inputs.v[i * V + column] - through_state(inputs.k, i, column));
      // The diagonal of I + A passes x_i on; without it only the rows above remain (the first row is kept, or all
      // would be zero).
      double value = mistake == Mistake::kLostUnitDiagonal && i > 0 ? 0.0 : x;
      for (int64_t j = 0; j < i; ++j)
        value -= inputs.beta[i] * dot(inputs.k, i, inputs.k, j) * decay(i, j) * u[j * V + column];
      u[i * V + column] = value;
      double o = through_state(inputs.q, i, column);
      for (int64_t j = 0; j <= i; ++j) o += dot(inputs.q, i, inputs.k, j) * decay(i, j) * u[j * V + column];
      output[i * V + column] = o;
    }
  }
  return output;
}

class KnownMistakes : public BackendTest {
 protected:
  KnownMistakes() {
    Random random(1);
    inputs_ = RandomDeltaRuleInputs(OperatorDims(1, 1, 16, 12), /*tokens=*/40, random, /*g_low=*/-0.3f);
    // Keys that overlap, or the write would have nothing to correct.
    for (size_t i = 16; i < inputs_.k.size(); ++i) inputs_.k[i] = 0.6f * inputs_.k[i - 16] + 0.7f * inputs_.k[i];
    state_ = random.Normal(inputs_.dims.state_elements());
    std::vector<double> state(state_.begin(), state_.end());
    truth_ = DeltaRuleInDouble(inputs_, state);
  }

  void ExpectEveryPathIsTrue() {
    for (const DeltaRulePath path : kDeltaRulePaths) {
      DecodeSlots slots(backend(), inputs_.dims, 1);
      slots.SetBase(0, state_);
      EXPECT_LE(RelativeNormError(slots.Run(path, inputs_), truth_), kTolerance) << DeltaRulePathName(path);
    }
  }

  DeltaRuleInputs inputs_;
  std::vector<float> state_;
  std::vector<double> truth_;
};
GDN_ON_EVERY_BACKEND(KnownMistakes);

TEST_P(KnownMistakes, DecayMaskWithTheSignSwapped) {
  ASSERT_LE(RelativeNormError(ChunkFormInDouble(inputs_, state_, Mistake::kNone), truth_), kRounding);
  EXPECT_GE(RelativeNormError(ChunkFormInDouble(inputs_, state_, Mistake::kDecayMaskSign), truth_), kVisible);
  ExpectEveryPathIsTrue();
}

TEST_P(KnownMistakes, ForwardSubstitutionThatLosesTheUnitDiagonal) {
  ASSERT_LE(RelativeNormError(ChunkFormInDouble(inputs_, state_, Mistake::kNone), truth_), kRounding);
  EXPECT_GE(RelativeNormError(ChunkFormInDouble(inputs_, state_, Mistake::kLostUnitDiagonal), truth_), kVisible);
  ExpectEveryPathIsTrue();
}

TEST_P(KnownMistakes, GatedLinearAttentionCalledTheDeltaRule) {
  // S <- exp(g) S + k (beta v)^T never reads what S already holds for k.
  const int64_t K = inputs_.dims.key_dim;
  const int64_t V = inputs_.dims.value_dim;
  std::vector<double> state(state_.begin(), state_.end());
  std::vector<double> output(truth_.size(), 0.0);
  for (int64_t t = 0; t < inputs_.tokens; ++t) {
    for (int64_t i = 0; i < K; ++i) {
      for (int64_t j = 0; j < V; ++j) {
        double& s = state[i * V + j];
        s = s * std::exp(double{inputs_.g[t]}) + double{inputs_.k[t * K + i]} * inputs_.beta[t] * inputs_.v[t * V + j];
        output[t * V + j] += s * inputs_.q[t * K + i];
      }
    }
  }
  EXPECT_GE(RelativeNormError(output, truth_), kVisible);
  ExpectEveryPathIsTrue();
}

TEST_P(KnownMistakes, CacheThatDoesNotCarryItsOwnLength) {
  // Two sessions of unequal age in one batch: 5 and 12 tokens before the step. One length for both is the mistake.
  const int32_t ages[] = {5, 12};
  const auto step = [&](int32_t first, int32_t second) {
    DecodeSlots slots(backend(), inputs_.dims, 2);
    std::vector<Log> logs;
    for (const int32_t slot : {0, 1}) {
      slots.SetBase(slot, state_);
      Log log{.slot = slot, .base_slot = slot};
      for (int32_t t = 0; t < ages[slot]; ++t) slots.Decode(Slice(inputs_, t, t + 1), log);
      logs.push_back(log);
    }
    logs[0].length = first;
    logs[1].length = second;
    return slots.Decode(Concatenate({Slice(inputs_, ages[0], ages[0] + 1), Slice(inputs_, ages[1], ages[1] + 1)}),
                        {1, 1}, logs);
  };
  const int64_t V = inputs_.dims.value_dim;
  std::vector<double> expected(truth_.begin() + ages[0] * V, truth_.begin() + (ages[0] + 1) * V);
  expected.insert(expected.end(), truth_.begin() + ages[1] * V, truth_.begin() + (ages[1] + 1) * V);
  EXPECT_LE(RelativeNormError(step(5, 12), expected), kTolerance);
  EXPECT_GE(RelativeNormError(step(5, 5), expected), kVisible);
}

}  // namespace
}  // namespace gdn::delta_rule_known_mistakes_test
