// The stages of the chunked delta rule on the GPU sources: each against its reference, and all of them in a row against
// the recurrence.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"
#include "kernels/primitives/triangular_solve/triangular_solve.h"
#include "tests/kernels/gpu/gpu_fixture.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

constexpr double kSumTolerance = 1e-5;
constexpr double kPipelineTolerance = 1e-5;

struct Problem {
  LayerDims dims;
  int32_t chunk_tokens;
  std::vector<int32_t> cu_seqlens{0}, chunk_offsets{0};
  std::vector<float> q = {}, k = {}, v = {}, g = {}, beta = {}, initial = {};

  int32_t tokens() const { return cu_seqlens.back(); }
  int32_t chunks() const { return chunk_offsets.back(); }
  int32_t sequences() const { return static_cast<int32_t>(cu_seqlens.size()) - 1; }
  int64_t matrices() const { return int64_t{chunks()} * dims.value_heads; }
  int64_t matrix_elements() const { return matrices() * chunk_tokens * chunk_tokens; }
  ChunkedBatch Batch(const int32_t* cu, const int32_t* offsets) const {
    return {dims, chunk_tokens, sequences(), tokens(), chunks(), cu, offsets};
  }
};

struct Options {
  float strongest = -1.0f;
  float correlation = 0.0f;
};

Problem MakeProblem(const LayerDims& dims, int32_t chunk_tokens, const std::vector<int32_t>& lengths,
                    const Options& options, uint64_t seed) {
  Random random(seed);
  Problem p{.dims = dims, .chunk_tokens = chunk_tokens};
  for (const int32_t length : lengths) {
    p.cu_seqlens.push_back(p.cu_seqlens.back() + length);
    p.chunk_offsets.push_back(p.chunk_offsets.back() + (length + chunk_tokens - 1) / chunk_tokens);
  }
  p.q = random.Normal(p.tokens() * dims.key_features());
  p.k = random.Normal(p.tokens() * dims.key_features());
  const std::vector<float> common = random.Normal(dims.key_dim);
  for (size_t i = 0; i < p.k.size(); ++i) {
    p.k[i] = options.correlation * common[i % common.size()] + (1.0f - options.correlation) * p.k[i];
  }
  for (std::vector<float>* x : {&p.q, &p.k}) {
    const double scale = x == &p.q ? 1.0 / std::sqrt(static_cast<double>(dims.key_dim)) : 1.0;
    for (size_t i = 0; i < x->size(); i += dims.key_dim) {
      double squares = 0.0;
      for (int32_t f = 0; f < dims.key_dim; ++f) squares += double{(*x)[i + f]} * double{(*x)[i + f]};
      for (int32_t f = 0; f < dims.key_dim; ++f) (*x)[i + f] *= static_cast<float>(scale / std::sqrt(squares));
    }
  }
  p.v = random.Normal(p.tokens() * dims.value_features());
  p.g = random.Uniform(int64_t{p.tokens()} * dims.value_heads, options.strongest, 0.0f);
  p.beta = random.Uniform(int64_t{p.tokens()} * dims.value_heads, 0.0f, 1.0f);
  p.initial = random.Normal(p.sequences() * dims.state_elements(), 0.5f);
  return p;
}

// Every tensor that the stages make.
struct Tensors {
  std::vector<double> g_sum;
  std::vector<float> a, mask, t, attention, w, u, h, v_new, output, final_state;
};

// The recurrence of design section 2, in double.
void Recurrence(const Problem& p, std::vector<float>& output, std::vector<float>& states) {
  const LayerDims& d = p.dims;
  output.assign(p.v.size(), 0.0f);
  states.assign(p.initial.size(), 0.0f);
  for (int64_t s = 0; s < p.sequences(); ++s) {
    for (int64_t head = 0; head < d.value_heads; ++head) {
      const int64_t at = (s * d.value_heads + head) * d.key_dim * d.value_dim;
      std::vector<double> state(p.initial.begin() + at, p.initial.begin() + at + d.key_dim * d.value_dim);
      for (int64_t token = p.cu_seqlens[s]; token < p.cu_seqlens[s + 1]; ++token) {
        const float* k = &p.k[(token * d.key_heads + head / d.group()) * d.key_dim];
        const float* q = &p.q[(token * d.key_heads + head / d.group()) * d.key_dim];
        const int64_t gate = token * d.value_heads + head;
        const double decay = std::exp(double{p.g[gate]});
        for (int64_t column = 0; column < d.value_dim; ++column) {
          double seen = 0.0, out = 0.0;
          for (int64_t f = 0; f < d.key_dim; ++f) seen += (state[f * d.value_dim + column] *= decay) * k[f];
          const double u = p.beta[gate] * (p.v[gate * d.value_dim + column] - seen);
          for (int64_t f = 0; f < d.key_dim; ++f) out += (state[f * d.value_dim + column] += k[f] * u) * q[f];
          output[gate * d.value_dim + column] = static_cast<float>(out);
        }
      }
      std::transform(state.begin(), state.end(), states.begin() + at, [](double x) { return static_cast<float>(x); });
    }
  }
}

Tensors StagesReference(const Problem& p) {
  const ChunkedBatch batch = p.Batch(p.cu_seqlens.data(), p.chunk_offsets.data());
  const int64_t ks = p.dims.key_features();
  const int64_t vs = p.dims.value_features();
  Tensors t;
  t.g_sum.resize(p.g.size());
  for (std::vector<float>* x : {&t.a, &t.mask, &t.t, &t.attention}) x->resize(p.matrix_elements());
  for (std::vector<float>* x : {&t.u, &t.v_new, &t.output}) x->resize(p.v.size());
  t.w.resize(p.g.size() * p.dims.key_dim);
  t.h.resize(p.matrices() * p.dims.key_dim * p.dims.value_dim);
  t.final_state.resize(p.initial.size());
  CumsumKktReference({batch, p.k.data(), ks, p.g.data(), p.beta.data(), t.g_sum.data(), t.a.data()});
  ChunkDecayMaskReference({batch, t.g_sum.data(), t.mask.data()});
  UnitLowerInverseReference({p.matrices(), p.chunk_tokens, t.a.data(), t.t.data()});
  ChunkAttentionReference({batch, p.q.data(), p.k.data(), ks, ks, t.g_sum.data(), t.attention.data()});
  WyReference(
      {batch, t.t.data(), p.k.data(), p.v.data(), ks, vs, p.beta.data(), t.g_sum.data(), t.w.data(), t.u.data()});
  ChunkStateReference({batch, p.k.data(), ks, t.w.data(), t.u.data(), t.g_sum.data(), p.initial.data(), t.h.data(),
                       t.v_new.data(), t.final_state.data()});
  ChunkOutputReference(
      {batch, p.q.data(), ks, t.h.data(), t.attention.data(), t.v_new.data(), t.g_sum.data(), t.output.data()});
  return t;
}

struct DeviceProblem {
  ChunkedBatch batch;
  const float *q, *k, *v, *g, *beta, *initial;
};

DeviceProblem Upload(GpuDevice& device, const Problem& p) {
  return {p.Batch(device.UploadValues(p.cu_seqlens), device.UploadValues(p.chunk_offsets)),
          device.Upload(p.q),
          device.Upload(p.k),
          device.Upload(p.v),
          device.Upload(p.g),
          device.Upload(p.beta),
          device.Upload(p.initial)};
}

// All stages by DeltaRuleStagesGpu.
void RunAll(GpuDevice& device, const Problem& p, std::vector<float>& output, std::vector<float>& states) {
  const DeviceProblem d = Upload(device, p);
  DeltaRuleStagesParams params{.batch = d.batch,
                               .q = d.q,
                               .k = d.k,
                               .v = d.v,
                               .q_stride = p.dims.key_features(),
                               .k_stride = p.dims.key_features(),
                               .v_stride = p.dims.value_features(),
                               .g = d.g,
                               .beta = d.beta,
                               .initial_state = d.initial};
  params.output = device.Poisoned(static_cast<int64_t>(p.v.size()));
  params.final_state = device.Poisoned(static_cast<int64_t>(p.initial.size()));
  params.g_sum = device.PoisonedValues<double>(static_cast<int64_t>(p.g.size()));
  params.t = device.Poisoned(p.matrix_elements());
  params.attention = device.Poisoned(p.matrix_elements());
  params.w = device.Poisoned(static_cast<int64_t>(p.g.size()) * p.dims.key_dim);
  params.v_new = device.Poisoned(static_cast<int64_t>(p.v.size()));
  params.h = device.Poisoned(p.matrices() * p.dims.key_dim * p.dims.value_dim);
  const absl::Status status = DeltaRuleStagesGpu(params, device.stream());
  ASSERT_TRUE(status.ok()) << status;
  output = device.Download(params.output, static_cast<int64_t>(p.v.size()));
  states = device.Download(params.final_state, static_cast<int64_t>(p.initial.size()));
}

void ExpectMatchesRecurrence(GpuDevice& device, const Problem& p, double tolerance, const std::string& what) {
  std::vector<float> output, states, expected_output, expected_states;
  RunAll(device, p, output, states);
  Recurrence(p, expected_output, expected_states);
  EXPECT_LE(RelativeNormError(output, expected_output), tolerance) << what;
  EXPECT_LE(RelativeNormError(states, expected_states), tolerance) << what;
}

const LayerDims kGrouped{.key_heads = 2, .value_heads = 4, .key_dim = 40, .value_dim = 24};
const LayerDims kOdd{.key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 17};

TEST(DeltaRuleStages, EachStageMatchesItsReference) {
  OnEveryWave([](GpuDevice& device) {
    for (const LayerDims& dims : {kGrouped, kOdd}) {
      for (const int32_t c : {16, 32, 64}) {
        SCOPED_TRACE(absl::StrCat(LayerDimsToString(dims), " C=", c));
        const Problem p = MakeProblem(dims, c, {1, 0, c + 5, c, 0}, {}, 1);
        const Tensors e = StagesReference(p);
        const DeviceProblem d = Upload(device, p);
        const int64_t ks = dims.key_features();
        const int64_t vs = dims.value_features();
        const auto near = [&device](const float* actual, const std::vector<float>& expected) {
          return RelativeNormError(device.Download(actual, static_cast<int64_t>(expected.size())), expected) <=
                 kSumTolerance;
        };
        const auto poisoned = [&device](const std::vector<float>& like) {
          return device.Poisoned(static_cast<int64_t>(like.size()));
        };
        const double* g_sum = device.UploadValues(e.g_sum);
        double* made_g_sum = device.PoisonedValues<double>(static_cast<int64_t>(e.g_sum.size()));
        float* a = poisoned(e.a);
        ASSERT_OK(CumsumKktGpu({d.batch, d.k, ks, d.g, d.beta, made_g_sum, a}, device.stream()));
        EXPECT_TRUE(near(a, e.a));
        const std::vector<double> fused = device.Download(made_g_sum, static_cast<int64_t>(e.g_sum.size()));
        for (size_t i = 0; i < fused.size(); ++i) ASSERT_NEAR(fused[i], e.g_sum[i], 1e-12);
        double* apart = device.PoisonedValues<double>(static_cast<int64_t>(e.g_sum.size()));
        ASSERT_OK(ChunkDecaySumsGpu({d.batch, d.g, apart}, device.stream()));
        EXPECT_EQ(device.Download(apart, static_cast<int64_t>(e.g_sum.size())), fused);
        float* a_apart = poisoned(e.a);
        ASSERT_OK(ChunkKktGpu({d.batch, d.k, ks, d.beta, apart, a_apart}, device.stream()));
        EXPECT_EQ(device.Download(a_apart, p.matrix_elements()), device.Download(a, p.matrix_elements()));
        float* mask = poisoned(e.mask);
        ASSERT_OK(ChunkDecayMaskGpu({d.batch, g_sum, mask}, device.stream()));
        EXPECT_TRUE(near(mask, e.mask));
        float* attention = poisoned(e.attention);
        ASSERT_OK(ChunkAttentionGpu({d.batch, d.q, d.k, ks, ks, g_sum, attention}, device.stream()));
        EXPECT_TRUE(near(attention, e.attention));
        float* w = poisoned(e.w);
        float* u = poisoned(e.u);
        ASSERT_OK(WyGpu({d.batch, device.Upload(e.t), d.k, d.v, ks, vs, d.beta, g_sum, w, u}, device.stream()));
        EXPECT_TRUE(near(w, e.w));
        EXPECT_TRUE(near(u, e.u));
        float* h = poisoned(e.h);
        float* v_new = poisoned(e.v_new);
        float* final_state = poisoned(e.final_state);
        ASSERT_OK(ChunkStateGpu(
            {d.batch, d.k, ks, device.Upload(e.w), device.Upload(e.u), g_sum, d.initial, h, v_new, final_state},
            device.stream()));
        EXPECT_TRUE(near(h, e.h));
        EXPECT_TRUE(near(v_new, e.v_new));
        EXPECT_TRUE(near(final_state, e.final_state));
        float* output = poisoned(e.output);
        ASSERT_OK(ChunkOutputGpu(
            {d.batch, d.q, ks, device.Upload(e.h), device.Upload(e.attention), device.Upload(e.v_new), g_sum, output},
            device.stream()));
        EXPECT_TRUE(near(output, e.output));
      }
    }
  });
}

TEST(DeltaRuleStages, AllStagesMatchTheRecurrence) {
  OnEveryWave([](GpuDevice& device) {
    for (const int32_t c : {16, 32, 64}) {
      for (const int32_t tokens : {1, c - 1, c, c + 1, 3 * c + 7}) {
        ExpectMatchesRecurrence(device, MakeProblem(kOdd, c, {tokens}, {}, 2), kPipelineTolerance,
                                absl::StrCat("C=", c, " T=", tokens));
      }
    }
  });
}

TEST(DeltaRuleStages, HoldForKeysThatPointOneWay) {
  OnEveryWave([](GpuDevice& device) {
    for (const int32_t c : {16, 32, 64}) {
      Problem p = MakeProblem(kGrouped, c, {2 * c}, {.strongest = -0.01f, .correlation = 0.95f}, 3);
      std::fill(p.beta.begin(), p.beta.end(), 1.0f);
      ExpectMatchesRecurrence(device, p, kPipelineTolerance, absl::StrCat("C=", c));
    }
  });
}

TEST(DeltaRuleStages, HoldForStrongDecayOfEveryToken) {
  OnEveryWave([](GpuDevice& device) {
    for (const int32_t c : {16, 32, 64}) {
      Problem p = MakeProblem(kGrouped, c, {2 * c + 3}, {}, 4);
      std::fill(p.g.begin(), p.g.end(), -20.0f);
      ExpectMatchesRecurrence(device, p, kPipelineTolerance, absl::StrCat("C=", c));
    }
  });
}

// A float32 running sum would err by 1e-3 behind the one token.
TEST(DeltaRuleStages, HoldBehindOneTokenThatForgetsAll) {
  OnEveryWave([](GpuDevice& device) {
    for (const int32_t c : {16, 32, 64}) {
      Problem p = MakeProblem(kGrouped, c, {2 * c}, {.strongest = -0.01f}, 5);
      for (int32_t head = 0; head < kGrouped.value_heads; ++head) p.g[3 * kGrouped.value_heads + head] = -1e4f;
      ExpectMatchesRecurrence(device, p, kPipelineTolerance, absl::StrCat("C=", c));
    }
  });
}

TEST(DeltaRuleStages, ThirtyTwoTokensAreAsExactAsAHundredAndTwentyEight) {
  OnEveryWave([](GpuDevice& device) {
    constexpr double kTight = 1e-6;  // well under what the pipeline is allowed, and the same for both
    for (const int32_t tokens : {32, 128}) {
      ExpectMatchesRecurrence(device, MakeProblem(kGrouped, 64, {tokens}, {.strongest = -0.1f}, 6), kTight,
                              absl::StrCat("T=", tokens));
    }
  });
}

TEST(DeltaRuleStages, ASequenceKeepsItsBitsInAnyBatch) {
  OnEveryWave([](GpuDevice& device) {
    const std::vector<int32_t> lengths{37, 0, 64, 1, 100};
    const Problem all = MakeProblem(kOdd, 32, lengths, {}, 7);
    std::vector<float> output, states;
    RunAll(device, all, output, states);
    for (size_t i = 0; i < lengths.size(); ++i) {
      Problem one = MakeProblem(kOdd, 32, {lengths[i]}, {}, 8);
      const auto cut = [&](std::vector<float>& to, const std::vector<float>& from, int64_t row) {
        to.assign(from.begin() + all.cu_seqlens[i] * row, from.begin() + all.cu_seqlens[i + 1] * row);
      };
      cut(one.q, all.q, kOdd.key_features());
      cut(one.k, all.k, kOdd.key_features());
      cut(one.v, all.v, kOdd.value_features());
      cut(one.g, all.g, kOdd.value_heads);
      cut(one.beta, all.beta, kOdd.value_heads);
      const int64_t state = static_cast<int64_t>(i) * kOdd.state_elements();
      one.initial.assign(all.initial.begin() + state, all.initial.begin() + state + kOdd.state_elements());
      std::vector<float> alone, alone_state, in_batch;
      RunAll(device, one, alone, alone_state);
      cut(in_batch, output, kOdd.value_features());
      EXPECT_TRUE(BitEqual(alone, in_batch)) << "sequence " << i;
      EXPECT_TRUE(BitEqual(alone_state, absl::MakeConstSpan(states).subspan(state, kOdd.state_elements())))
          << "sequence " << i;
    }
  });
}

TEST(DeltaRuleStages, WithoutTokensTheStateIsPassedOn) {
  OnEveryWave([](GpuDevice& device) {
    const Problem p = MakeProblem(kGrouped, 64, {0, 0}, {}, 9);
    std::vector<float> output, states;
    RunAll(device, p, output, states);
    EXPECT_TRUE(BitEqual(states, p.initial));
  });
}

TEST(DeltaRuleStages, RefuseWhatBreaksTheContract) {
  OnEveryWave([](GpuDevice& device) {
    const Problem p = MakeProblem(kGrouped, 64, {70}, {}, 10);
    const DeviceProblem d = Upload(device, p);
    double* g_sum = device.PoisonedValues<double>(static_cast<int64_t>(p.g.size()));
    ChunkDecaySumsParams params{d.batch, d.g, g_sum};
    params.batch.chunk_tokens = 48;
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    params.batch.chunk_tokens = 64;
    params.batch.chunks = 1;  // 70 tokens do not fit one chunk
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    params.batch.chunks = 2;
    EXPECT_TRUE(ChunkDecaySumsGpu(params, device.stream()).ok());
    params.g = nullptr;
    EXPECT_EQ(ChunkDecaySumsGpu(params, device.stream()).code(), absl::StatusCode::kInvalidArgument);
    ChunkAttentionParams short_stride{d.batch, d.q, d.k, 1, p.dims.key_features(), g_sum, device.Poisoned(64)};
    EXPECT_EQ(ChunkAttentionGpu(short_stride, device.stream()).code(), absl::StatusCode::kInvalidArgument);
  });
}

}  // namespace
}  // namespace gdn
