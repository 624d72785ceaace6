// Drafts that are trees, in a GdnLayerRunner: which of a step's tensors go through the rounds of tree_rounds.h.

#include <array>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/draft_tree.h"
#include "base/status_macros.h"
#include "kernels/layer/mixer_tensors.h"
#include "kernels/layer/tree_rounds.h"

namespace gdn {

bool GdnLayerRunner::HasTree(const LayerStep& step) {
  if (step.draft_parents == nullptr) return false;
  for (int32_t i = 0; i < step.batch.sequences; ++i) {
    const int32_t* const parents = step.draft_parents + step.batch.cu_seqlens[i];
    if (!IsDraftChain(absl::MakeConstSpan(parents, static_cast<size_t>(step.batch.length(i))))) return true;
  }
  return false;
}

absl::Status GdnLayerRunner::IssueTrees(const LayerStep& step, int32_t* log_lengths) {
  GDN_RETURN_IF_ERROR(trees_->Begin(step, log_lengths));
  GDN_RETURN_IF_ERROR(Run(step, log_lengths));
  AdvanceLogs(step.batch, /*draft=*/true, log_lengths);
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::MixRowsOfTrees(const LayerStep& step, const Mixer& mixer) {
  const LayerDims& dims = step.weights->spec.dims;
  const bool joint = mixer.in.qkvz != nullptr;  // projections side by side, which MixerInput splits
  const int64_t rows = trees_->most_rows();
  const int64_t qkvz = dims.conv_channels() + dims.value_features();
  const int64_t ba = 2 * int64_t{dims.value_heads};
  while (trees_->Next()) {
    LayerStep round = trees_->Step(step);
    Mixer paths;
    const int64_t records = backend_.DecodeRecordFloats(round.pool.layout, round.batch);
    GDN_RETURN_IF_ERROR(ReserveIn(path_rows_, {{&paths.in.qkvz, joint ? rows * qkvz : 0},
                                               {&paths.in.ba, joint ? rows * ba : 0},
                                               {&paths.split, joint ? rows * (dims.conv_channels() + ba) : 0},
                                               {&paths.in.z, joint ? rows * dims.value_features() : 0},
                                               {&paths.in.mixed_qkv, joint ? 0 : rows * dims.conv_channels()},
                                               {&paths.in.b, joint ? 0 : rows * dims.value_heads},
                                               {&paths.in.a, joint ? 0 : rows * dims.decay_features()},
                                               {&paths.convolved, rows * dims.conv_channels()},
                                               {&paths.q, rows * dims.key_features()},
                                               {&paths.k, rows * dims.key_features()},
                                               {&paths.g, rows * dims.decay_features()},
                                               {&paths.beta, rows * dims.value_heads},
                                               {&paths.records, records},
                                               {&paths.output, rows * dims.value_features()}}));
    // All that MixerInput reads of a token.
    if (joint) {
      GDN_RETURN_IF_ERROR(trees_->Enter({{mixer.in.qkvz, paths.in.qkvz, qkvz}, {mixer.in.ba, paths.in.ba, ba}}));
    } else {
      GDN_RETURN_IF_ERROR(trees_->Enter({{step.mixed_qkv.floats(), paths.in.mixed_qkv, dims.conv_channels()},
                                         {step.b.floats(), paths.in.b, dims.value_heads},
                                         {step.a.floats(), paths.in.a, dims.decay_features()}}));
      round.mixed_qkv = paths.in.mixed_qkv;
      round.b = paths.in.b;
      round.a = paths.in.a;
    }
    GDN_RETURN_IF_ERROR(MixRows(round, paths, trees_->log_lengths()));
    std::vector<TreeRounds::Rows> back = {{paths.output, mixer.output, dims.value_features()}};
    if (joint) back.push_back({paths.in.z, mixer.in.z, dims.value_features()});
    GDN_RETURN_IF_ERROR(trees_->Leave(back));
  }
  return absl::OkStatus();
}

absl::Status GdnLayerRunner::DeltaRuleOfTrees(const LayerStep& step, const DeltaRuleParams& rule) {
  static constexpr std::array kInputs = {&DeltaRuleParams::q, &DeltaRuleParams::k, &DeltaRuleParams::v,
                                         &DeltaRuleParams::g, &DeltaRuleParams::beta};
  const LayerDims& dims = step.pool.layout.dims();
  const std::array<int64_t, kInputs.size()> features = {dims.key_features(), dims.key_features(), dims.value_features(),
                                                        dims.decay_features(), dims.value_heads};
  const int64_t rows = trees_->most_rows();
  while (trees_->Next()) {
    const LayerStep round = trees_->Step(step);
    DeltaRuleParams paths = rule;
    paths.pool = round.pool;
    paths.batch = round.batch;
    std::array<float*, kInputs.size()> own;
    absl::InlinedVector<Part, kInputs.size() + 1> parts = {{&paths.output, rows * dims.value_features()}};
    for (size_t i = 0; i < own.size(); ++i) parts.push_back({&own[i], rows * features[i]});
    GDN_RETURN_IF_ERROR(ReserveIn(path_rows_, parts));
    std::vector<TreeRounds::Rows> inputs;
    for (size_t i = 0; i < own.size(); ++i) {
      inputs.push_back({rule.*kInputs[i], own[i], features[i]});
      paths.*kInputs[i] = own[i];
    }
    GDN_RETURN_IF_ERROR(trees_->Enter(inputs));
    GDN_RETURN_IF_ERROR(DeltaRule(round, paths, trees_->log_lengths(), /*records=*/nullptr));
    GDN_RETURN_IF_ERROR(trees_->Leave({{paths.output, rule.output, dims.value_features()}}));
  }
  return absl::OkStatus();
}

}  // namespace gdn
