// A task folds one value head of one entry, from slot to slot.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_rule_decode/materialize_state_cpu.cc"
#include "hwy/foreach_target.h"
// foreach_target.h must come first.
#include <cstring>

#include "base/status_macros.h"
#include "hwy/highway.h"
#include "kernels/common/worker_scratch.h"
#include "kernels/delta_rule_decode/decode_log-inl.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_decode/fold_scratch.h"

HWY_BEFORE_NAMESPACE();
namespace gdn {
namespace HWY_NAMESPACE {
namespace {

void MaterializeHead(const MaterializeStateParams& params, int32_t index, int64_t hv, float* scratch) {
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  const int64_t offset = layout.base_offset() + hv * dims.key_dim * dims.value_dim;
  float* to = params.pool.slot(params.dst[index]) + offset;
  if (params.src[index] < 0) {
    std::memset(to, 0, static_cast<size_t>(dims.key_dim) * dims.value_dim * sizeof(float));
    return;
  }
  const int32_t base = params.src_bases == nullptr ? params.src[index] : params.src_bases[index];
  HeadLog log;
  OpenLog(layout, params.pool.slot(params.src[index]), hv, params.log_lengths[index], log);
  FoldHead(log, dims, params.pool.slot(base) + offset, to, scratch);
}

void MaterializeTasks(const MaterializeStateParams& params, ThreadPool& pool, const WorkerScratch& scratch) {
  const int64_t heads = params.pool.layout.dims().value_heads;
  pool.ParallelFor(params.count * heads, [&](int64_t index, int worker) {
    MaterializeHead(params, static_cast<int32_t>(index / heads), index % heads, scratch.piece(worker));
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace gdn
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace gdn {

HWY_EXPORT(MaterializeTasks);

absl::Status MaterializeStateCpu(const MaterializeStateParams& params, ThreadPool& pool) {
  GDN_RETURN_IF_ERROR(ValidateMaterializeState(params));
  const StateLayout& layout = params.pool.layout;
  const LayerDims& dims = layout.dims();
  GDN_ASSIGN_OR_RETURN(const WorkerScratch scratch,
                       WorkerScratch::Make(pool.threads(), FoldScratchFloats(dims, layout.log_rows())));
  HWY_DYNAMIC_DISPATCH(MaterializeTasks)(params, pool, scratch);

  const size_t conv_bytes = static_cast<size_t>(layout.conv_columns() * dims.conv_channels()) * sizeof(float);
  for (int32_t i = 0; i < params.count && conv_bytes > 0; ++i) {
    float* to = params.pool.slot(params.dst[i]) + layout.conv_offset();
    if (params.src[i] < 0) {
      std::memset(to, 0, conv_bytes);
    } else if (params.src[i] != params.dst[i]) {
      std::memcpy(to, params.pool.slot(params.src[i]) + layout.conv_offset(), conv_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
#endif  // HWY_ONCE
