#include "tools/gdn_bench/drift_bench.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <random>

#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/slot_access.h"
#include "tools/gdn_bench/drift_rows.h"

namespace gdn::bench {
namespace {

constexpr int32_t kDim = 128;             // K = V, as in Qwen3-Next
constexpr int64_t kAllKeysTokens = 1000;  // of kHalfOfTheKeys

// Log decays are uniform in [-most, 0]: "slow" is the golden set of that name's G, 0.05.
struct Inputs {
  const char* name;
  float most;
  bool half_of_the_keys;  // after kAllKeysTokens, keys are of the first half of the dimensions, queries of all
};
constexpr std::array<Inputs, 6> kInputs = {{{"fast, g in [-5, 0]", 5.0f, false},
                                            {"g in [-1, 0]", 1.0f, false},
                                            {"slow, g in [-0.05, 0]", 0.05f, false},
                                            {"g in [-0.001, 0]", 0.001f, false},
                                            {"no decay", 0.0f, false},
                                            {"g in [-0.001, 0], half of the keys", 0.001f, true}}};
constexpr auto kSequences = static_cast<int32_t>(kInputs.size());

// What all sequences get in one call: [sequences, tokens, ..].
struct CallInputs {
  std::vector<float> q, k, v, g, beta;
};

class Source {
 public:
  explicit Source(uint64_t seed) : generator_(seed) {}

  CallInputs Next(int64_t first, int32_t tokens) {
    CallInputs in;
    for (const Inputs& kind : kInputs) {
      for (int32_t t = 0; t < tokens; ++t) {
        const bool half = kind.half_of_the_keys && first + t >= kAllKeysTokens;
        AppendUnit(kDim, 1.0f / std::sqrt(static_cast<float>(kDim)), in.q);
        AppendUnit(half ? kDim / 2 : kDim, 1.0f, in.k);
        for (int32_t j = 0; j < kDim; ++j) in.v.push_back(normal_(generator_));
        in.g.push_back(-kind.most * uniform_(generator_));
        in.beta.push_back(uniform_(generator_));
      }
    }
    return in;
  }

 private:
  // A vector of this norm whose elements from `used` on are zero.
  void AppendUnit(int32_t used, float norm, std::vector<float>& to) {
    std::array<float, kDim> x{};
    double squares = 0;
    for (int32_t i = 0; i < used; ++i) {
      x[i] = normal_(generator_);
      squares += double{x[i]} * x[i];
    }
    for (float& value : x) to.push_back(static_cast<float>(value * norm / std::sqrt(squares)));
  }

  std::mt19937_64 generator_;
  std::normal_distribution<float> normal_;
  std::uniform_real_distribution<float> uniform_{0.0f, 1.0f};
};

// The recurrence of one sequence, token by token, in double.
class Exact {
 public:
  std::vector<double> Step(const float* q, const float* k, const float* v, float g, float beta) {
    const double decay = std::exp(double{g});
    std::vector<double> u(kDim), o(kDim);
    for (int32_t i = 0; i < kDim; ++i) {
      double* row = state_.data() + int64_t{i} * kDim;
      for (int32_t j = 0; j < kDim; ++j) {
        row[j] *= decay;
        u[j] += row[j] * k[i];
      }
    }
    for (int32_t j = 0; j < kDim; ++j) u[j] = beta * (v[j] - u[j]);
    for (int32_t i = 0; i < kDim; ++i) {
      double* row = state_.data() + int64_t{i} * kDim;
      for (int32_t j = 0; j < kDim; ++j) {
        row[j] += k[i] * u[j];
        o[j] += row[j] * q[i];
      }
    }
    return o;
  }
  const std::vector<double>& state() const { return state_; }

 private:
  std::vector<double> state_ = std::vector<double>(int64_t{kDim} * kDim);
};

// The same by the service's operators, on a base of one dtype.
class Decoder {
 public:
  static absl::StatusOr<Decoder> Make(Backend& backend, const LayerDims& dims, DType dtype) {
    Decoder made(backend);
    made.pool_.slot_count = 2 * kSequences;  // the second half is where states are folded to be looked at
    GDN_ASSIGN_OR_RETURN(made.pool_.layout, StateLayout::Make(dims, kDriftCallTokens, dtype));
    GDN_ASSIGN_OR_RETURN(made.memory_, DeviceBuffer::Make(backend, static_cast<size_t>(2 * kSequences) *
                                                                       made.pool_.layout.slot_bytes()));
    made.pool_.data = made.memory_.floats();
    for (int32_t i = 0; i < kSequences; ++i) made.slots_.push_back(i);
    made.log_lengths_.resize(kSequences);
    return made;
  }

  absl::StatusOr<std::vector<float>> Step(const CallInputs& in, int32_t tokens) {
    std::vector<int32_t> starts;
    for (int32_t i = 0; i <= kSequences; ++i) starts.push_back(i * tokens);
    std::vector<float> output(in.v.size());
    GDN_RETURN_IF_ERROR(backend_->DeltaRuleDecode(
        {.rule = {.pool = pool_,
                  .batch = {.sequences = kSequences, .cu_seqlens = starts.data(), .slots = slots_.data()},
                  .q = in.q.data(),
                  .k = in.k.data(),
                  .v = in.v.data(),
                  .g = in.g.data(),
                  .beta = in.beta.data(),
                  .q_stride = kDim,
                  .k_stride = kDim,
                  .v_stride = kDim,
                  .output = output.data()},
         .log_lengths = log_lengths_.data()}));
    return output;
  }

  absl::StatusOr<std::vector<float>> State(int32_t sequence) {
    const int32_t to = kSequences + sequence;
    GDN_RETURN_IF_ERROR(backend_->MaterializeState(
        {.pool = pool_, .count = 1, .src = &sequence, .dst = &to, .log_lengths = &log_lengths_[sequence]}));
    GDN_ASSIGN_OR_RETURN(SlotImage image, ReadSlot(*backend_, pool_, to, /*log_length=*/0, /*token_count=*/0));
    return std::move(image.base);
  }

 private:
  explicit Decoder(Backend& backend) : backend_(&backend) {}

  Backend* backend_;
  DeviceBuffer memory_;
  StatePoolView pool_;
  std::vector<int32_t> slots_;
  std::vector<int32_t> log_lengths_;
};

}  // namespace

absl::StatusOr<std::vector<DriftRow>> RunDriftBench(const DriftOptions& options) {
  GDN_ASSIGN_OR_RETURN(const std::unique_ptr<Backend> backend, MakeCpuBackend({}));
  const LayerDims dims{.key_heads = 1, .value_heads = 1, .key_dim = kDim, .value_dim = kDim};
  GDN_ASSIGN_OR_RETURN(Decoder f32, Decoder::Make(*backend, dims, DType::kF32));
  GDN_ASSIGN_OR_RETURN(Decoder bf16, Decoder::Make(*backend, dims, DType::kBF16));
  Source source(options.seed);
  std::vector<Exact> exact(kSequences);
  std::vector<std::array<Difference, 2>> outputs(kSequences);
  std::vector<std::vector<DriftRow>> rows(kSequences);
  int64_t row = NextDriftRow(0, options.tokens);
  for (int64_t done = 0; done < options.tokens;) {
    const auto tokens = static_cast<int32_t>(std::min<int64_t>(kDriftCallTokens, row - done));
    const CallInputs in = source.Next(done, tokens);
    GDN_ASSIGN_OR_RETURN(const std::vector<float> wide, f32.Step(in, tokens));
    GDN_ASSIGN_OR_RETURN(const std::vector<float> narrow, bf16.Step(in, tokens));
    for (int32_t s = 0; s < kSequences; ++s) {
      for (int64_t at = int64_t{s} * tokens; at < int64_t{s + 1} * tokens; ++at) {
        const std::vector<double> o =
            exact[s].Step(&in.q[at * kDim], &in.k[at * kDim], &in.v[at * kDim], in.g[at], in.beta[at]);
        if (done + at - int64_t{s} * tokens < row - kDriftOutputs) continue;
        outputs[s][0].Add(&wide[at * kDim], o.data(), kDim);
        outputs[s][1].Add(&narrow[at * kDim], o.data(), kDim);
      }
    }
    done += tokens;
    if (done < row) continue;
    for (int32_t s = 0; s < kSequences; ++s) {
      std::array<Difference, 2> states;
      GDN_ASSIGN_OR_RETURN(const std::vector<float> wide_state, f32.State(s));
      GDN_ASSIGN_OR_RETURN(const std::vector<float> narrow_state, bf16.State(s));
      states[0].Add(wide_state.data(), exact[s].state().data(), dims.state_elements());
      states[1].Add(narrow_state.data(), exact[s].state().data(), dims.state_elements());
      rows[s].push_back({.inputs = kInputs[s].name,
                         .tokens = done,
                         .f32 = {.output = outputs[s][0].relative(), .state = states[0].relative()},
                         .bf16 = {.output = outputs[s][1].relative(), .state = states[1].relative()}});
      outputs[s] = {};
    }
    row = NextDriftRow(done, options.tokens);
  }
  std::vector<DriftRow> all;
  for (const std::vector<DriftRow>& of : rows) all.insert(all.end(), of.begin(), of.end());
  return all;
}

std::string DriftTable(const std::vector<DriftRow>& rows) {
  std::string table =
      "| inputs | tokens | output, float32 | output, bf16 | state, float32 | state, bf16 |\n"
      "|---|--:|--:|--:|--:|--:|\n";
  for (const DriftRow& row : rows) {
    absl::StrAppendFormat(&table, "| %s | %d | %.1e | %.1e | %.1e | %.1e |\n", row.inputs, row.tokens, row.f32.output,
                          row.bf16.output, row.f32.state, row.bf16.state);
  }
  return table;
}

nlohmann::ordered_json DriftJson(const std::vector<DriftRow>& rows) {
  nlohmann::ordered_json json;
  for (const DriftRow& row : rows) {
    json.push_back({{"inputs", row.inputs},
                    {"tokens", row.tokens},
                    {"output_error", {{"float32", row.f32.output}, {"bf16", row.bf16.output}}},
                    {"state_error", {{"float32", row.f32.state}, {"bf16", row.bf16.state}}}});
  }
  return json;
}

}  // namespace gdn::bench
