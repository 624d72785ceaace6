#include "kernels/gpu_backend/gpu_backend.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/fill/fill.h"
#include "kernels/gpu/dot2_probe.h"
#include "kernels/gpu/loading.h"
#include "kernels/gpu/runtime.h"
#include "kernels/gpu_backend/gpu_staging.h"
#include "kernels/gpu_backend/gpu_transfers.h"
#include "kernels/gpu_backend/index_staging.h"
#include "kernels/gpu_backend/launch_streams.h"
#include "kernels/gpu_backend/packed_copy.h"
#include "kernels/gpu_backend/step_graphs.h"
#include "kernels/host_copy/host_copy.h"
#include "kernels/projection/packed_weights_gpu.h"

#ifndef GDN_GPU_BACKEND_NAME
#error "GDN_GPU_BACKEND_NAME comes from CMake"
#endif

namespace gdn {
namespace {

// Raised whenever a GPU operator's bits change.
constexpr int kKernelVersion = 9;

struct DestroysStream {
  void operator()(const gpu::Stream* stream) const {
    gpu::DestroyStream(*stream);
    delete stream;
  }
};
using OwnedStream = std::unique_ptr<const gpu::Stream, DestroysStream>;

// Returns how the device multiplies fp16 numbers, or nullopt if projections should not: the math has no such products,
// matrix units make exact ones, or the device has not proven its Dot2.
absl::StatusOr<std::optional<gpu::Dot2Variant>> HalfProductsOf(ProductMath math, const gpu::Stream& stream) {
  if (math == ProductMath::kInt8 || (math == ProductMath::kExact && stream.matrix_units)) return std::nullopt;
  return gpu::ProbeDot2(stream);
}

// Returns what numerics_id says of products. Without a variant those of kHalf are float32's, and exact.
std::string ProductsId(ProductMath math, const std::optional<gpu::Dot2Variant>& variant) {
  const std::string name = variant.has_value() ? gpu::Dot2VariantName(*variant) : "fma";
  const bool named = variant.has_value() || math == ProductMath::kHalf;
  return absl::StrCat(std::string(NumericsSuffixOf(math)), named ? "-" : "", named ? name : "");
}

class GpuBackend final : public Backend {
 public:
  GpuBackend(int device, ProductMath math, const std::optional<gpu::Dot2Variant>& halves, const gpu::DeviceInfo& info,
             OwnedStream stream, gpu::PinnedRing ring, size_t index_arena_bytes)
      : device_(device),
        vendor_(info.vendor),
        owned_stream_(std::move(stream)),
        stream_(*owned_stream_),
        transfers_(device),
        streams_(device, stream_),
        ring_(std::move(ring)),
        indices_(stream_, index_arena_bytes),
        graphs_(stream_) {
    info_.name = std::string(GpuBackendName());
    info_.device = absl::StrCat(info.name, " (", info.architecture, ")");
    info_.numerics_id = absl::StrCat(info_.name, "-", info.vendor, "-", info.architecture, "-w", info.wave_width, "-",
                                     info.toolkit, "-k", kKernelVersion, "-L", kLogCapacity, "-C", kGpuChunkTokens,
                                     stream_.matrix_units ? "-mma" : "", ProductsId(math, halves));
    info_.math = math;
    info_.takes_halves = halves.has_value();
    info_.memory_bytes = info.free_bytes;
    info_.transposed_base = true;
    info_.weight_formats = kAllWeights;
    info_.merges_sequences = true;
  }

  ~GpuBackend() override {
    static_cast<void>(gpu::SynchronizeStream(stream_));  // nobody is left to hear of a failure
    if (order_ != nullptr) gpu::DestroyEvent(order_);
  }

  // Lets blocks share work. Call once, before the first operator: it runs the first kernel.
  absl::Status MakeCounters() {
    GDN_ASSIGN_OR_RETURN(counters_, DeviceBuffer::Make(*this, gpu::kStreamCounters * sizeof(uint32_t)));  // zeroed
    stream_.counters = reinterpret_cast<uint32_t*>(counters_.floats());
    return absl::OkStatus();
  }

  const BackendInfo& info() const override { return info_; }
  const gpu::Stream& stream() const { return stream_; }

  absl::StatusOr<void*> Allocate(size_t bytes) override {
    GDN_RETURN_IF_ERROR(gpu::UseDevice(device_));
    const size_t whole = (bytes + sizeof(float) - 1) / sizeof(float) * sizeof(float);
    GDN_ASSIGN_OR_RETURN(void* data, gpu::DeviceMalloc(whole));
    const gpu::LoadingOnly::Paused paused;  // memory that is acquired ahead is zeroed too
    // Beside the operators and complete, as the caller may be any thread and use the memory by way of any stream.
    const absl::Status status = transfers_.Zero(data, whole);
    if (status.ok()) return data;
    gpu::DeviceFree(data);
    return status;
  }
  void Free(void* data, size_t /*bytes*/) override {
    if (graphs_.FreesLater(data)) return;
    graphs_.DropAll();  // waits too: work in flight may still use it, and not every runtime's free does
    gpu::DeviceFree(data);
  }
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override {
    return Move("copy", device, host, bytes, [&] { return ring_.CopyIn(device, host, bytes); });
  }
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override {
    return Move("copy", host, device, bytes, [&] { return ring_.CopyOut(host, device, bytes); });
  }
  absl::Status Synchronize() override { return streams_.Synchronize(); }
  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    return Move("copy", to, from, bytes, [&] {
      return gpu::LoadingOnly::active() ? absl::OkStatus() : gpu::CopyOnDevice(to, from, bytes, stream_);
    });
  }
  absl::Status CopyPieces(absl::Span<const CopyPiece> pieces) override {
    GDN_RETURN_IF_ERROR(ValidateCopyPieces(pieces));
    const std::vector<CopyPiece> shares = CopySharesOf(pieces);
    if (shares.empty()) return absl::OkStatus();
    GDN_ASSIGN_OR_RETURN(const CopyPiece* placed, indices_.Shares(ring_, shares));
    return CopyPiecesGpu(placed, static_cast<int64_t>(shares.size()), stream_);
  }
  int64_t FreeMemoryBytes() override {
    const absl::StatusOr<gpu::DeviceInfo> info = gpu::DescribeDevice(device_);
    return info.ok() ? info->free_bytes : 0;
  }

  absl::StatusOr<void*> AllocateHost(size_t bytes) override {
    GDN_RETURN_IF_ERROR(gpu::UseDevice(device_));
    return gpu::PinnedMalloc(bytes);
  }
  void FreeHost(void* data, size_t /*bytes*/) override { gpu::PinnedFree(data); }
  absl::Status TransferOut(void* host, const void* device, size_t bytes) override {
    return Move("transfer", host, device, bytes, [&] { return transfers_.Out(host, device, bytes); });
  }
  absl::Status TransferIn(void* device, const void* host, size_t bytes) override {
    return Move("transfer", device, host, bytes, [&] { return transfers_.In(device, host, bytes); });
  }

  absl::Status UseThread() override {
    indices_.ForgetProvided();  // the launch that did may have ended, and its memory been freed
    return gpu::UseDevice(device_);
  }
  size_t BatchArrayBytes(int32_t sequences) const override { return gpu::IndexStaging::StagedBytes(sequences); }
  absl::Status StageIn(const StageInParams& params) override {
    GDN_RETURN_IF_ERROR(RequirePointers("StageIn", {{"device", params.device}, {"host", params.host}}));
    char* device = static_cast<char*>(params.device);
    char* host = static_cast<char*>(params.host);
    const size_t arrays = indices_.Provide(device + params.bytes, host + params.bytes, params);
    return streams_.In(device, host, params.bytes + arrays);
  }
  absl::Status StagePiece(void* device, const void* host, size_t bytes) override {
    return Move("StagePiece", device, host, bytes, [&] { return streams_.In(device, host, bytes); });
  }
  absl::Status StageOut(void* host, const void* device, size_t bytes) override {
    return Move("StageOut", host, device, bytes, [&] { return streams_.Out(host, device, bytes); });
  }
  absl::StatusOr<Fence> MakeFence() override {
    GDN_ASSIGN_OR_RETURN(gpu::LaunchFence* const fence, streams_.MakeFence());
    return Fence{fence};
  }
  absl::Status WaitFence(Fence fence) override {
    if (fence.point == nullptr) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(gpu::UseDevice(device_));
    return streams_.WaitFence(static_cast<gpu::LaunchFence*>(fence.point));
  }

  absl::Status IssueOrReplay(const ReplayableStep& step, absl::FunctionRef<absl::Status()> issue) override {
    key_.clear();
    if (!info_.replays_steps || !indices_.AddPlaces(step, &key_)) return issue();
    key_.append(step.key);
    const auto issue_step = [&] {
      indices_.RefuseToSend(graphs_.recording());
      const absl::Status status = issue();
      indices_.RefuseToSend(false);
      return status;
    };
    return graphs_.Run(key_, issue_step);
  }
  absl::Status Prepare(absl::FunctionRef<absl::Status()> issue) override {
    if (graphs_.recording()) return absl::OkStatus();  // what is recorded does not run yet
    const gpu::LoadingOnly loading;
    return issue();
  }
  GpuGraphCounts graph_counts() const { return graphs_.counts(); }

  absl::Status IssueInOrderOf(void* stream, absl::FunctionRef<absl::Status()> issue) {
    GDN_ASSIGN_OR_RETURN(const int previous, gpu::DeviceInUse());
    const absl::Status status = IssueBetween({.handle = stream, .wave_width = stream_.wave_width}, issue);
    const absl::Status restored = previous == device_ ? absl::OkStatus() : gpu::UseDevice(previous);
    return status.ok() ? restored : status;
  }

  // Before the first step.
  void DecideOnGraphs(GpuGraphs choice) {
    if (choice == GpuGraphs::kOff) {
      info_.graphs = "off, as --gpu-graphs says";
      return;
    }
    if (choice == GpuGraphs::kOn) {
      info_.replays_steps = true;
      info_.graphs = "on, as --gpu-graphs says";
      return;
    }
    if (vendor_ == "host") {  // its times are an emulator's
      info_.graphs = "off on the host executor";
      return;
    }
    const absl::StatusOr<gpu::GraphGain> gain = gpu::MeasureGraphGain(stream_);
    info_.replays_steps = gain.ok() && gain->worthwhile();
    info_.graphs = gain.ok() ? absl::StrFormat("%s: six launches take %.1f us, replayed %.1f",
                                               info_.replays_steps ? "on" : "off", gain->plain_us, gain->replayed_us)
                             : absl::StrCat("off: ", std::string(gain.status().message()));
  }

  int64_t WeightBytes(const WeightMatrix& weight) const override { return PackedWeightBytes(weight); }
  absl::Status CopyWeightsIn(void* device, const WeightMatrix& host) override {
    return gpu::CopyPackedWeights(ring_, device, host);
  }

  absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot) override {
    GDN_RETURN_IF_ERROR(ValidateSlot(pool, slot));
    return FillZeroGpu(pool.slot(slot), static_cast<size_t>(pool.layout.slot_bytes()), stream_);
  }

#define GDN_ISSUE_OPERATOR(Name, Params, Check)      \
  absl::Status Name(const Params& params) override { \
    GDN_RETURN_IF_ERROR(Check(params));              \
    return Issue(params, Name##Gpu);                 \
  }
  GDN_OPERATORS(GDN_ISSUE_OPERATOR)
  GDN_ISSUE_OPERATOR(MixerInput, MixerInputParams, ValidateMixerInput)
#undef GDN_ISSUE_OPERATOR
  // On waves of 64 it saves time for any number of rows. On those of 32 it does with a decay a head, while all its
  // blocks, one for each head, run at the same time: a layer's step of 8 sessions took 36.4 us instead of 37.5 on an
  // H200, one of 32 sessions 83.4 instead of 77.5.
  bool FusesMixedDecode(const MixedDecodeParams& params) const override {
    const LayerDims& dims = params.input.pool.layout.dims();
    const int64_t heads = int64_t{params.input.batch.sequences} * dims.value_heads;
    const bool fits = !dims.decays_by_channel() && heads <= 2 * int64_t{stream_.processors};
    return (stream_.wave_width == 64 || fits) && TakesMixedDecodeGpu(params);
  }
  absl::Status MixedDecode(const MixedDecodeParams& params) override {
    GDN_RETURN_IF_ERROR(ValidateMixedDecode(params));
    return FusesMixedDecode(params) ? Issue(params, MixedDecodeGpu) : Backend::MixedDecode(params);
  }
  bool TakesTerms(const ProjectionParams& params) const override { return TakesTermsGpu(params, stream_); }
  // These two check their params themselves.
  absl::Status Convert(const ConvertParams& params) override { return ConvertGpu(params, stream_); }
  absl::Status Projections(absl::Span<const ProjectionParams> params) override {
    GDN_RETURN_IF_ERROR(ReserveWorkspace(GpuWorkspaceFloats(params, stream_)));
    return ProjectionsGpu(params, workspace_.floats(), stream_);
  }
  int64_t DecodeRecordFloats(const StateLayout& layout, const PackedBatch& batch) const override {
    return DecodeRecordFloatsGpu(layout, batch, stream_);
  }

 private:
  // Checks a copy's ends and makes it, unless it is empty.
  template <typename Function>
  static absl::Status Move(const char* what, const void* to, const void* from, size_t bytes, const Function& move) {
    if (bytes == 0) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(RequirePointers(what, {{"destination", to}, {"source", from}}));
    return move();
  }

  // Calls an operator's launcher with what it takes: params alone; a workspace; the batch on the device; both; a fold.
  template <typename Params>
  absl::Status Issue(const Params& params, absl::Status (*launch)(const Params&, const gpu::Stream&)) {
    return launch(params, stream_);
  }
  template <typename Params>
  absl::Status Issue(const Params& params, absl::Status (*launch)(const Params&, float*, const gpu::Stream&)) {
    GDN_RETURN_IF_ERROR(ReserveWorkspace(GpuWorkspaceFloats(params, stream_)));
    return launch(params, workspace_.floats(), stream_);
  }
  template <typename Params>
  absl::Status Issue(const Params& params,
                     absl::Status (*launch)(const Params&, const gpu::DeviceBatch&, const gpu::Stream&)) {
    GDN_ASSIGN_OR_RETURN(const gpu::DeviceBatch batch, indices_.Batch(ring_, params.arrays()));
    return launch(params, batch, stream_);
  }
  template <typename Params>
  absl::Status Issue(const Params& params,
                     absl::Status (*launch)(const Params&, const gpu::DeviceBatch&, float*, const gpu::Stream&)) {
    GDN_ASSIGN_OR_RETURN(const gpu::DeviceBatch batch, indices_.Batch(ring_, params.arrays()));
    GDN_RETURN_IF_ERROR(ReserveWorkspace(GpuWorkspaceFloats(params, stream_)));
    return launch(params, batch, workspace_.floats(), stream_);
  }
  template <typename Params>
  absl::Status Issue(const Params& params,
                     absl::Status (*launch)(const Params&, const gpu::DeviceFold&, const gpu::Stream&)) {
    if (params.count == 0) return absl::OkStatus();
    GDN_ASSIGN_OR_RETURN(const gpu::DeviceFold fold, indices_.Fold(ring_, params));
    return launch(params, fold, stream_);
  }

  absl::Status IssueBetween(const gpu::Stream& caller, absl::FunctionRef<absl::Status()> issue) {
    GDN_RETURN_IF_ERROR(UseThread());
    GDN_RETURN_IF_ERROR(RefuseCapture(caller));
    if (order_ == nullptr) {
      GDN_ASSIGN_OR_RETURN(order_, gpu::MakeEvent());
    }
    const auto order = [this](const gpu::Stream& first, const gpu::Stream& waiting) {
      const absl::Status status = gpu::RecordEvent(order_, first);
      return status.ok() ? gpu::StreamWaitsFor(waiting, order_) : status;
    };
    GDN_RETURN_IF_ERROR(order(caller, stream_));
    const absl::Status status = issue();
    // Behind what was issued, though the rest failed: it may still use the caller's memory.
    const absl::Status ordered = order(stream_, caller);
    return status.ok() ? ordered : status;
  }

  // A replay would copy what page-locked memory holds by then, and counts on the host would stay behind.
  static absl::Status RefuseCapture(const gpu::Stream& caller) {
    GDN_ASSIGN_OR_RETURN(const bool capturing, gpu::IsCapturing(caller));
    if (!capturing) return absl::OkStatus();
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     "the stream is being captured into a graph, and this work cannot be replayed; expected a stream "
                     "that runs what it is given: call it outside the capture",
                     {{"field", "stream"}});
  }

  absl::Status ReserveWorkspace(int64_t floats) {
    const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
    if (bytes <= workspace_.bytes()) return absl::OkStatus();
    workspace_ = DeviceBuffer();
    GDN_ASSIGN_OR_RETURN(workspace_, DeviceBuffer::Make(*this, bytes));
    return absl::OkStatus();
  }

  // Constant after construction.
  const int device_;
  const std::string vendor_;
  const OwnedStream owned_stream_;  // goes after all that works on it
  gpu::Stream stream_;              // but for its counters (MakeCounters)
  BackendInfo info_;

  gpu::GpuTransfers transfers_;  // own synchronisation

  gpu::LaunchStreams streams_;  // own synchronisation for fences; the rest of the one thread that issues operators

  // Of the one thread that issues operators.
  gpu::Event order_ = nullptr;  // between its stream and a caller's
  gpu::PinnedRing ring_;
  gpu::IndexStaging indices_;
  std::string key_;  // of the step that is issued; kept for its memory

  gpu::StepGraphs graphs_;  // own synchronisation
  DeviceBuffer workspace_, counters_;
};

}  // namespace

std::string_view GpuBackendName() { return GDN_GPU_BACKEND_NAME; }

absl::StatusOr<std::unique_ptr<Backend>> MakeGpuBackend(const GpuBackendOptions& options) {
  GDN_ASSIGN_OR_RETURN(const int count, gpu::DeviceCount());
  if (options.device < 0 || options.device >= count) {
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                     absl::StrCat("GPU ", options.device, " was asked for and ", count,
                                  " can be seen; run 'gdnctl doctor' to see what this machine lacks, look at "
                                  "HIP_VISIBLE_DEVICES, or use --backend=cpu"),
                     {{"device", std::to_string(options.device)}, {"count", std::to_string(count)}});
  }
  GDN_ASSIGN_OR_RETURN(const gpu::DeviceInfo info, gpu::DescribeDevice(options.device));
  GDN_ASSIGN_OR_RETURN(gpu::Stream made, gpu::MakeStream(options.device));
  made.matrix_units = made.matrix_units && options.matrix_units;
  OwnedStream stream(new gpu::Stream(made));
  GDN_RETURN_IF_ERROR(gpu::UseDevice(options.device));  // for the launches below; another may be the thread's
  const auto or_default = [](size_t bytes, size_t default_bytes) { return bytes != 0 ? bytes : default_bytes; };
  GDN_ASSIGN_OR_RETURN(gpu::PinnedRing ring, gpu::PinnedRing::Make(made, or_default(options.pinned_ring_bytes,
                                                                                    gpu::PinnedRing::kDefaultBytes)));
  // A device that this build has no code for fails here, by name, and not at a user's first step.
  const auto or_unsupported = [&](const absl::Status& status) {
    if (status.ok() || absl::IsResourceExhausted(status)) return status;
    const std::string name = absl::StrCat(info.name, " (", info.architecture, ")");
    return MakeError(absl::StatusCode::kFailedPrecondition, reason::kDeviceUnsupported,
                     absl::StrCat("no kernel of this build runs on ", name, ": ", std::string(status.message())),
                     {{"device", name}});
  };
  const absl::StatusOr<std::optional<gpu::Dot2Variant>> halves = HalfProductsOf(options.math, made);
  GDN_RETURN_IF_ERROR(or_unsupported(halves.status()));
  auto backend =
      std::make_unique<GpuBackend>(options.device, options.math, *halves, info, std::move(stream), std::move(ring),
                                   or_default(options.index_arena_bytes, gpu::IndexStaging::kDefaultArenaBytes));
  GDN_RETURN_IF_ERROR(or_unsupported(backend->MakeCounters()));
  {
    // The copies that end a launch must not fail for want of their code.
    const gpu::LoadingOnly loading;
    GDN_RETURN_IF_ERROR(or_unsupported(
        HostCopyGpu(/*to=*/nullptr, /*from=*/nullptr, /*bytes=*/1, /*flags=*/nullptr, /*number=*/0, made)));
  }
  backend->DecideOnGraphs(options.graphs);
  return backend;
}

GpuGraphCounts GpuGraphCountsOf(Backend& backend) {
  auto* gpu_backend = dynamic_cast<GpuBackend*>(&backend);
  return gpu_backend == nullptr ? GpuGraphCounts{} : gpu_backend->graph_counts();
}

absl::StatusOr<gpu::Stream> GpuStreamOf(Backend& backend) {
  if (auto* gpu_backend = dynamic_cast<GpuBackend*>(&backend); gpu_backend != nullptr) return gpu_backend->stream();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kDeviceUnsupported,
                   absl::StrCat("backend '", backend.info().name, "' has no GPU stream"),
                   {{"backend", backend.info().name}});
}

absl::Status GpuIssueInOrderOf(Backend& backend, void* stream, absl::FunctionRef<absl::Status()> issue) {
  GDN_RETURN_IF_ERROR(GpuStreamOf(backend).status());
  return static_cast<GpuBackend&>(backend).IssueInOrderOf(stream, issue);
}

}  // namespace gdn
