#include "tests/capi/through_libgdn.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/gdn.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"

namespace gdn {
namespace {

absl::Status Unoffered(const char* what) { return absl::UnimplementedError(absl::StrCat("libgdn has no ", what)); }

absl::Status Check(int code) {
  return code == GDN_OK ? absl::OkStatus() : absl::InternalError(absl::StrCat("code ", code, ": ", gdn_last_error()));
}

// The pool of a call's parameters as one of libgdn's, over the same memory.
class Pool {
 public:
  Pool(gdn_context* context, const StatePoolView& view)
      : token_counts_(static_cast<size_t>(view.slot_count)), log_lengths_(token_counts_.size()) {
    const LayerDims& dims = view.layout.dims();
    gdn_pool_spec spec{};
    spec.struct_size = sizeof(spec);
    spec.key_heads = dims.key_heads;
    spec.value_heads = dims.value_heads;
    spec.key_dim = dims.key_dim;
    spec.value_dim = dims.value_dim;
    spec.max_decode_tokens = view.layout.max_draft();
    spec.decay = dims.decays_by_channel() ? GDN_DECAY_PER_CHANNEL : GDN_DECAY_PER_HEAD;
    spec.state_dtype = view.layout.base_dtype() == DType::kBF16 ? GDN_BF16 : GDN_F32;
    spec.slots = view.slot_count;
    spec.memory = view.data;
    spec.token_counts = token_counts_.data();
    spec.log_lengths = log_lengths_.data();
    status_ = Check(gdn_pool_create(context, &spec, &pool_));
  }
  Pool(const Pool&) = delete;
  ~Pool() { gdn_pool_destroy(pool_); }

  const absl::Status& status() const { return status_; }
  gdn_pool* get() const { return pool_; }
  int32_t& log_length(int32_t slot) { return log_lengths_[static_cast<size_t>(slot)]; }

 private:
  std::vector<int64_t> token_counts_;
  std::vector<int32_t> log_lengths_;
  gdn_pool* pool_ = nullptr;
  absl::Status status_;
};

gdn_tensor Tensor(const float* data, int64_t tokens, int32_t heads, int32_t width) {
  return {const_cast<float*>(data), GDN_F32, width > 0 ? 3 : 2, {tokens, heads, width, 0}};
}

class BackendThroughLibgdn final : public Backend {
 public:
  BackendThroughLibgdn(std::unique_ptr<Backend> memory, gdn_context* context, void* stream)
      : memory_(std::move(memory)), context_(context), stream_(stream), info_(memory_->info()) {
    info_.name = "libgdn";
    info_.numerics_id = gdn_context_numerics_id(context);
  }
  ~BackendThroughLibgdn() override { gdn_context_destroy(context_); }

  const BackendInfo& info() const override { return info_; }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return memory_->Allocate(bytes); }
  void Free(void* data, size_t bytes) override { memory_->Free(data, bytes); }
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override {
    return memory_->CopyIn(device, host, bytes);
  }
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override {
    return memory_->CopyOut(host, device, bytes);
  }
  absl::Status Synchronize() override { return memory_->Synchronize(); }

  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override { return Advance(params, nullptr); }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override { return Advance(params, nullptr); }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    if (params.draft || params.base_slots != nullptr) return Unoffered("drafts and shared bases");
    return Advance(params.rule, params.log_lengths);
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    if (params.src_bases != nullptr || params.pool.layout.dims().conv_width > 0) return Unoffered("shared bases");
    Pool pool(context_, params.pool);
    GDN_RETURN_IF_ERROR(pool.status());
    std::vector<float> matrices(static_cast<size_t>(params.pool.layout.dims().state_elements()));
    for (int32_t i = 0; i < params.count; ++i) {
      if (params.src[i] < 0 || params.log_lengths[i] >= kLogCapacity) return Unoffered("logs as long as that");
      pool.log_length(params.src[i]) = params.log_lengths[i];
      GDN_RETURN_IF_ERROR(Check(gdn_state_get(pool.get(), params.src[i], matrices.data(), stream_)));
      GDN_RETURN_IF_ERROR(Check(gdn_state_set(pool.get(), params.dst[i], matrices.data(), 0, stream_)));
    }
    return absl::OkStatus();
  }

  absl::Status Projection(const ProjectionParams& /*params*/) override { return Unoffered("projection"); }
  absl::Status QkvzSplit(const QkvzSplitParams& /*params*/) override { return Unoffered("split"); }
  absl::Status CausalConv1d(const CausalConv1dParams& /*params*/) override { return Unoffered("convolution"); }
  absl::Status Gating(const GatingParams& /*params*/) override { return Unoffered("gating"); }
  absl::Status QkL2Norm(const QkL2NormParams& /*params*/) override { return Unoffered("l2norm of its own"); }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& /*params*/) override { return Unoffered("norm"); }
  absl::Status Convert(const ConvertParams& /*params*/) override { return Unoffered("conversion"); }

 private:
  // A prefill where there are no log lengths.
  absl::Status Advance(const DeltaRuleParams& params, int32_t* log_lengths) {
    const LayerDims& dims = params.pool.layout.dims();
    const PackedBatch& batch = params.batch;
    const int64_t tokens = batch.tokens();
    Pool pool(context_, params.pool);
    GDN_RETURN_IF_ERROR(pool.status());
    for (int32_t i = 0; log_lengths != nullptr && i < batch.sequences; ++i) {
      if (batch.slots[i] >= 0) pool.log_length(batch.slots[i]) = log_lengths[i];
    }
    gdn_delta_rule_step step{};
    step.struct_size = sizeof(step);
    step.batch = {batch.sequences, batch.cu_seqlens, batch.slots};
    step.q = Tensor(params.q, tokens, dims.key_heads, dims.key_dim);
    step.k = Tensor(params.k, tokens, dims.key_heads, dims.key_dim);
    step.v = Tensor(params.v, tokens, dims.value_heads, dims.value_dim);
    step.g = Tensor(params.g, tokens, dims.value_heads, dims.decays_by_channel() ? dims.key_dim : 0);
    step.beta = Tensor(params.beta, tokens, dims.value_heads, 0);
    step.output = Tensor(params.output, tokens, dims.value_heads, dims.value_dim);
    step.scale = 1.0f;
    step.stream = stream_;
    step.max_beta = params.max_beta;
    GDN_RETURN_IF_ERROR(Check(log_lengths == nullptr ? gdn_prefill(pool.get(), &step) : gdn_decode(pool.get(), &step)));
    for (int32_t i = 0; log_lengths != nullptr && i < batch.sequences; ++i) {
      if (batch.slots[i] >= 0) log_lengths[i] = pool.log_length(batch.slots[i]);
    }
    return absl::OkStatus();
  }

  std::unique_ptr<Backend> memory_;
  gdn_context* context_;
  void* stream_;  // of memory_
  BackendInfo info_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Backend>> MakeBackendThroughLibgdn(std::string_view name) {
  std::unique_ptr<Backend> memory;
  void* stream = nullptr;
  gdn_context* context = nullptr;
  if (name == "gpu") {
    GDN_ASSIGN_OR_RETURN(memory, MakeGpuBackend({}));
    GDN_ASSIGN_OR_RETURN(const gpu::Stream of_memory, GpuStreamOf(*memory));
    stream = of_memory.handle;
  } else if (name == "cpu") {
    GDN_ASSIGN_OR_RETURN(memory, MakeCpuBackend({.threads = 1}));
  } else {
    return absl::InvalidArgumentError(absl::StrCat("libgdn has no backend '", std::string(name), "'; cpu or gpu"));
  }
  GDN_RETURN_IF_ERROR(Check(gdn_context_create(name == "gpu" ? GDN_GPU : GDN_CPU, 0, 0, &context)));
  return std::make_unique<BackendThroughLibgdn>(std::move(memory), context, stream);
}

}  // namespace gdn
