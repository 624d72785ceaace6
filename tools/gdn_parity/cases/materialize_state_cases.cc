// Rows of MaterializeState: a random base under a random log, folded into another slot.

#include <functional>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "tools/gdn_parity/cases/delta_rule_runner.h"
#include "tools/gdn_parity/cases/operator_cases.h"

namespace gdn::parity {
namespace {

constexpr int32_t kMaterializeDraft = 16;

CaseResult RunMaterializeState(const DecayShape& shape, int32_t log_length, Backend& backend, RandomTensor& random) {
  const LayerDims& dims = shape.dims;
  GDN_ASSIGN_OR_RETURN(StatePair state, StatePair::Make(backend, dims, /*slots=*/2, kMaterializeDraft));
  SlotImage image;
  image.base = random.Normal(dims.state_elements());
  image.log_k = random.Directions(int64_t{log_length} * dims.key_heads, dims.key_dim, 1.0f);
  image.log_u = random.Normal(log_length * dims.value_features());
  image.log_g = random.Uniform(log_length * dims.decay_features(), shape.strongest, 0.0f);
  if (dims.conv_width > 0) image.conv = random.Normal(dims.conv_channels() * (dims.conv_width - 1));
  GDN_RETURN_IF_ERROR(state.Write(0, 0, image));
  const int32_t src = 0;
  const int32_t dst = 1;
  MaterializeStateParams params{.pool = state.host(), .count = 1, .src = &src, .dst = &dst, .log_lengths = &log_length};
  MaterializeStateReference(params);
  params.pool = state.device();
  GDN_RETURN_IF_ERROR(backend.MaterializeState(params));
  return state.CompareSlot(dst, 0);
}

}  // namespace

void AddMaterializeStateCases(std::vector<ParityCase>& cases) {
  const auto add = [&cases](const char* suite, const DecayShape& shape, int32_t log_length) {
    cases.push_back({suite, "materialize",
                     absl::StrCat(DimsName(shape.dims), " g>=", shape.strongest, " log=", log_length),
                     kDeferredTolerance, std::bind_front(RunMaterializeState, shape, log_length)});
    cases.back().by_channel = shape.dims.decays_by_channel();
  };
  for (const DecayShape& shape : kDecayShapes) {
    for (const int32_t log_length : {1, 7, kLogCapacity}) add("delta_rule", shape, log_length);
  }
  for (DecayShape shape : kDecayShapes) {
    shape.dims = ByChannel(shape.dims);
    for (const int32_t log_length : {1, 7, kLogCapacity}) add("kda", shape, log_length);
  }
  add("kda", {ByChannel({1, 2, 24, 40, 4, 8}), -1.0f}, kLogCapacity + kMaterializeDraft);
  add("kda", {ByChannel(Dims(1, 1, 300, 17)), -1.0f}, kLogCapacity);
  add("kda", {ByChannel(Dims(1, 1, 1001, 3)), -1e4f}, kLogCapacity);
  // A draft behind a full log, with convolution columns; entries that stay in memory on the GPU.
  add("shapes", {{1, 2, 24, 40, 4, 8}, -1.0f}, kLogCapacity + kMaterializeDraft);
  add("shapes", {Dims(1, 1, 300, 17), -1.0f}, kLogCapacity);
  add("shapes", {Dims(1, 1, 1001, 3), -1.0f}, kLogCapacity);
}

}  // namespace gdn::parity
