// A backend that forwards everything to another. A test's backend derives from it and overrides what it changes.
//
// Thread safety: as the other backend. Ownership: none; the other backend outlives it.
//
//   class Mine : public ForwardingBackend { ... overrides what it changes ... };
#pragma once

#include <cstdint>

#include "absl/functional/function_ref.h"
#include "base/status_macros.h"
#include "kernels/backend.h"

namespace gdn {

class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(Backend& other) : other_(other) {}

  const BackendInfo& info() const override { return other_.info(); }
  absl::StatusOr<void*> Allocate(size_t bytes) override { return other_.Allocate(bytes); }
  void Free(void* data, size_t bytes) override { other_.Free(data, bytes); }
  absl::Status CopyIn(void* device, const void* host, size_t bytes) override {
    return other_.CopyIn(device, host, bytes);
  }
  absl::Status CopyOut(void* host, const void* device, size_t bytes) override {
    return other_.CopyOut(host, device, bytes);
  }
  absl::Status Synchronize() override { return other_.Synchronize(); }
  int64_t FreeMemoryBytes() override { return other_.FreeMemoryBytes(); }
  absl::StatusOr<void*> AllocateHost(size_t bytes) override { return other_.AllocateHost(bytes); }
  void FreeHost(void* data, size_t bytes) override { other_.FreeHost(data, bytes); }
  absl::Status TransferOut(void* host, const void* device, size_t bytes) override {
    return other_.TransferOut(host, device, bytes);
  }
  absl::Status TransferIn(void* device, const void* host, size_t bytes) override {
    return other_.TransferIn(device, host, bytes);
  }
  absl::Status UseThread() override { return other_.UseThread(); }
  size_t BatchArrayBytes(int32_t sequences) const override { return other_.BatchArrayBytes(sequences); }
  absl::Status StageIn(const StageInParams& params) override { return other_.StageIn(params); }
  absl::Status StagePiece(void* device, const void* host, size_t bytes) override {
    return other_.StagePiece(device, host, bytes);
  }
  absl::Status WaitFence(Fence fence) override { return other_.WaitFence(fence); }
  absl::Status IssueOrReplay(const ReplayableStep& step, absl::FunctionRef<absl::Status()> issue) override {
    return other_.IssueOrReplay(step, issue);
  }
  absl::Status Prepare(absl::FunctionRef<absl::Status()> issue) override { return other_.Prepare(issue); }
  int64_t WeightBytes(const WeightMatrix& weight) const override { return other_.WeightBytes(weight); }
  absl::Status CopyWeightsIn(void* device, const WeightMatrix& host) override {
    return other_.CopyWeightsIn(device, host);
  }
  int64_t DecodeRecordFloats(const StateLayout& layout, const PackedBatch& batch) const override {
    return other_.DecodeRecordFloats(layout, batch);
  }

  absl::Status Copy(void* to, const void* from, size_t bytes) override {
    return Operation([&] { return other_.Copy(to, from, bytes); });
  }
  absl::Status CopyPieces(absl::Span<const CopyPiece> pieces) override {
    return Operation([&] { return other_.CopyPieces(pieces); });
  }
  absl::Status StageOut(void* host, const void* device, size_t bytes) override {
    return Operation([&] { return other_.StageOut(host, device, bytes); });
  }
  absl::StatusOr<Fence> MakeFence() override {
    GDN_RETURN_IF_ERROR(Operation([] { return absl::OkStatus(); }));
    return other_.MakeFence();
  }
  absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot) override {
    return Operation([&] { return other_.ZeroSlot(pool, slot); });
  }
  absl::Status Projection(const ProjectionParams& params) override {
    return Operation([&] { return other_.Projection(params); });
  }
  absl::Status Projections(absl::Span<const ProjectionParams> params) override {
    return Operation([&] { return other_.Projections(params); });
  }
  absl::Status QkvzSplit(const QkvzSplitParams& params) override {
    return Operation([&] { return other_.QkvzSplit(params); });
  }
  absl::Status CausalConv1d(const CausalConv1dParams& params) override {
    return Operation([&] { return other_.CausalConv1d(params); });
  }
  absl::Status Gating(const GatingParams& params) override {
    return Operation([&] { return other_.Gating(params); });
  }
  absl::Status QkL2Norm(const QkL2NormParams& params) override {
    return Operation([&] { return other_.QkL2Norm(params); });
  }
  absl::Status MixerInput(const MixerInputParams& params) override {
    return Operation([&] { return other_.MixerInput(params); });
  }
  absl::Status DeltaRuleChunk(const DeltaRuleParams& params) override {
    return Operation([&] { return other_.DeltaRuleChunk(params); });
  }
  absl::Status DeltaRuleScan(const DeltaRuleParams& params) override {
    return Operation([&] { return other_.DeltaRuleScan(params); });
  }
  absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) override {
    return Operation([&] { return other_.DeltaRuleDecode(params); });
  }
  absl::Status MaterializeState(const MaterializeStateParams& params) override {
    return Operation([&] { return other_.MaterializeState(params); });
  }
  absl::Status GatedRmsNorm(const GatedRmsNormParams& params) override {
    return Operation([&] { return other_.GatedRmsNorm(params); });
  }
  absl::Status Convert(const ConvertParams& params) override {
    return Operation([&] { return other_.Convert(params); });
  }

 protected:
  // Called for every operator, copy within backend memory, StageOut and fence. run() forwards the operation; an
  // override may return an error without calling it.
  virtual absl::Status Operation(absl::FunctionRef<absl::Status()> run) { return run(); }

  Backend& other_;
};

}  // namespace gdn
