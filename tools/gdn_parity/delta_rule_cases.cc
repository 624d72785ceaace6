// Suite "delta_rule": every form of the recurrence against the token-by-token reference, outputs and final states.

#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/parity_case.h"

namespace gdn::parity {
namespace {

constexpr char kSuite[] = "delta_rule";
constexpr int32_t kMaxDraft = 8;

enum class Form { kScan, kChunk, kDeferred };

struct Shape {
  int32_t key_heads, value_heads, key_dim, value_dim;
  float strongest;  // g is uniform in [strongest, 0]
};

LayerDims Dims(const Shape& shape) {
  return {.key_heads = shape.key_heads,
          .value_heads = shape.value_heads,
          .key_dim = shape.key_dim,
          .value_dim = shape.value_dim};
}

// One call of a form on the device and of the reference on the host, with fresh random inputs.
absl::Status Step(Form form, const Shape& shape, const OwnedBatch& batch, const StatePair& state,
                  std::vector<int32_t>& log_lengths, Backend& backend, RandomTensor& random, OutputPair& outputs) {
  BackendData data(backend);
  const LayerDims dims = Dims(shape);
  const int64_t tokens = batch.tokens();
  const float scale = 1.0f / std::sqrt(static_cast<float>(dims.key_dim));
  const std::vector<float> q = random.Directions(tokens * dims.key_heads, dims.key_dim, scale);
  const std::vector<float> k = random.Directions(tokens * dims.key_heads, dims.key_dim, 1.0f);
  const std::vector<float> v = random.Normal(tokens * dims.value_features());
  const std::vector<float> g = random.Uniform(tokens * dims.value_heads, shape.strongest, 0.0f);
  const std::vector<float> beta = random.Uniform(tokens * dims.value_heads, 0.0f, 1.0f);
  std::vector<float> expected(v.size());
  DeltaRuleParams rule{.pool = state.host(),
                       .batch = batch.view(),
                       .q = q.data(),
                       .k = k.data(),
                       .v = v.data(),
                       .g = g.data(),
                       .beta = beta.data(),
                       .q_stride = dims.key_features(),
                       .k_stride = dims.key_features(),
                       .v_stride = dims.value_features(),
                       .output = expected.data()};
  DeltaRuleScanReference(rule);

  rule.pool = state.device();
  GDN_ASSIGN_OR_RETURN(rule.q, data.Upload(q));
  GDN_ASSIGN_OR_RETURN(rule.k, data.Upload(k));
  GDN_ASSIGN_OR_RETURN(rule.v, data.Upload(v));
  GDN_ASSIGN_OR_RETURN(rule.g, data.Upload(g));
  GDN_ASSIGN_OR_RETURN(rule.beta, data.Upload(beta));
  GDN_ASSIGN_OR_RETURN(rule.output, data.Poisoned(expected.size()));
  switch (form) {
    case Form::kScan:
      GDN_RETURN_IF_ERROR(backend.DeltaRuleScan(rule));
      break;
    case Form::kChunk:
      GDN_RETURN_IF_ERROR(backend.DeltaRuleChunk(rule));
      break;
    case Form::kDeferred:
      GDN_RETURN_IF_ERROR(backend.DeltaRuleDecode({.rule = rule, .log_lengths = log_lengths.data()}));
      break;
  }
  GDN_ASSIGN_OR_RETURN(const std::vector<float> actual, data.Download(rule.output, expected.size()));
  outputs.Append(actual, expected);
  return absl::OkStatus();
}

// `calls` calls of the same lengths, then the states.
absl::StatusOr<Difference> RunForm(Form form, const Shape& shape, const std::vector<int32_t>& lengths, int calls,
                                   Backend& backend, RandomTensor& random) {
  const OwnedBatch batch(lengths);
  const int32_t sequences = batch.view().sequences;
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, Dims(shape), sequences, kMaxDraft));
  for (int32_t i = 0; i + 1 < sequences; ++i) GDN_RETURN_IF_ERROR(state.Randomize(i, 0, random));  // the last is fresh
  std::vector<int32_t> log_lengths(sequences, 0);
  OutputPair outputs;
  for (int call = 0; call < calls; ++call) {
    GDN_RETURN_IF_ERROR(Step(form, shape, batch, state, log_lengths, backend, random, outputs));
  }
  Difference difference = Compare(outputs.actual, outputs.expected);
  GDN_RETURN_IF_ERROR(state.FoldDevice(log_lengths));
  for (int32_t i = 0; i < sequences; ++i) {
    GDN_ASSIGN_OR_RETURN(const Difference of_slot, state.CompareSlot(i, 0));
    difference.Merge(of_slot);
  }
  return difference;
}

// A random base under a random log, folded.
absl::StatusOr<Difference> RunMaterialize(const Shape& shape, int32_t log_length, Backend& backend,
                                          RandomTensor& random) {
  const LayerDims dims = Dims(shape);
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, /*slots=*/2, kMaxDraft));
  SlotImage image;
  image.base = random.Normal(dims.state_elements());
  image.log_k = random.Directions(int64_t{log_length} * dims.key_heads, dims.key_dim, 1.0f);
  image.log_u = random.Normal(log_length * dims.value_features());
  image.log_g = random.Uniform(int64_t{log_length} * dims.value_heads, shape.strongest, 0.0f);
  GDN_RETURN_IF_ERROR(state.Write(0, 0, image));
  const int32_t src = 0;
  const int32_t dst = 1;
  MaterializeStateParams params{.pool = state.host(), .count = 1, .src = &src, .dst = &dst, .log_lengths = &log_length};
  MaterializeStateReference(params);
  params.pool = state.device();
  GDN_RETURN_IF_ERROR(backend.MaterializeState(params));
  return state.CompareSlot(dst, 0);
}

std::string ShapeName(const Shape& shape) {
  return absl::StrCat("H=", shape.key_heads, " HV=", shape.value_heads, " K=", shape.key_dim, " V=", shape.value_dim,
                      " g>=", shape.strongest);
}

}  // namespace

void AddDeltaRuleCases(std::vector<ParityCase>& cases) {
  const Shape grouped{2, 4, 128, 128, -1.0f};
  const Shape uneven{1, 3, 48, 32, -0.05f};
  const Shape odd{2, 2, 37, 51, -1.0f};
  const Shape strong{1, 2, 64, 64, -20.0f};

  const auto add = [&cases](const char* test, Form form, double tolerance, const Shape& shape,
                            const std::vector<int32_t>& lengths, int calls) {
    cases.push_back(
        {kSuite, test,
         absl::StrCat(ShapeName(shape), " T=", absl::StrJoin(lengths, ","), calls > 1 ? absl::StrCat(" x", calls) : ""),
         tolerance, [=](Backend& backend, RandomTensor& random) {
           return RunForm(form, shape, lengths, calls, backend, random);
         }});
  };
  for (const Shape& shape : {grouped, uneven, odd, strong}) {
    for (int32_t tokens : {1, 32, 40, 64, 100, 128}) {
      const int calls = tokens == 1 ? 20 : 1;  // one token alone may be all cancellation
      add("scan", Form::kScan, kScanTolerance, shape, {tokens}, calls);
      add("chunk", Form::kChunk, kChunkTolerance, shape, {tokens}, calls);
    }
    add("scan_packed", Form::kScan, kScanTolerance, shape, {1, 40, 0, 100}, 2);
    add("chunk_packed", Form::kChunk, kChunkTolerance, shape, {1, 40, 0, 100, 64}, 2);
    add("recurrent_in_place", Form::kScan, kScanTolerance, shape, {1, 1, 1}, 50);
    add("deferred_decode", Form::kDeferred, kDeferredTolerance, shape, {1}, 70);
    add("deferred_decode", Form::kDeferred, kDeferredTolerance, shape, {1, 1, 1, 1, 1}, 40);
    add("deferred_decode_ragged", Form::kDeferred, kDeferredTolerance, shape, {3, 1, 0, 8}, 20);
    for (int32_t log_length : {1, 7, kLogCapacity}) {
      cases.push_back(
          {kSuite, "materialize", absl::StrCat(ShapeName(shape), " log=", log_length), kDeferredTolerance,
           [=](Backend& backend, RandomTensor& random) { return RunMaterialize(shape, log_length, backend, random); }});
    }
  }
}

}  // namespace gdn::parity
