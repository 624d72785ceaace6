// The seam between the layer and the hardware: memory, and one call an operator.
//
// Thread safety: info(), Allocate, Free, the host memory, the transfers and WaitFence from any thread. Operators and
// copies run in the order in which they were issued, maybe behind the caller; Synchronize() waits for all of them and
// reports their first failure. One thread at a time may issue them.
// Ownership: the backend must outlive every DeviceBuffer and pool made from it.
//
//   GDN_ASSIGN_OR_RETURN(DeviceBuffer x, DeviceBuffer::Make(backend, bytes));
//   GDN_RETURN_IF_ERROR(backend.CopyIn(x.data(), host, bytes));
//   GDN_RETURN_IF_ERROR(backend.Projection(params));
//   GDN_RETURN_IF_ERROR(backend.Synchronize());
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/causal_conv1d/causal_conv1d.h"
#include "kernels/common/state_layout.h"
#include "kernels/convert/convert.h"
#include "kernels/copy_pieces/copy_pieces.h"
#include "kernels/delta_rule_chunk/delta_rule_chunk.h"
#include "kernels/delta_rule_decode/delta_rule_decode.h"
#include "kernels/delta_rule_scan/delta_rule_scan.h"
#include "kernels/gated_rmsnorm/gated_rmsnorm.h"
#include "kernels/gating/gating.h"
#include "kernels/mixer_input/mixer_input.h"
#include "kernels/projection/projection.h"
#include "kernels/qk_l2norm/qk_l2norm.h"
#include "kernels/qkvz_split/qkvz_split.h"

namespace gdn {

// Of BackendInfo::weight_formats.
constexpr uint32_t WeightFormatBit(WeightFormat format) { return 1u << static_cast<uint32_t>(format); }
inline constexpr uint32_t kPlainWeights =
    WeightFormatBit(WeightFormat::kF32) | WeightFormatBit(WeightFormat::kF16) | WeightFormatBit(WeightFormat::kBF16);
inline constexpr uint32_t kAllWeights =
    (WeightFormatBit(WeightFormat::kQ6_K) << 1) - WeightFormatBit(WeightFormat::kF32);

struct BackendInfo {
  std::string name;               // "cpu", "gpu", "host", "null"
  std::string device;             // for people: the processor's or card's name
  std::string numerics_id;        // equal ids promise equal bits: backend, instruction set, kernel version, L, C
  int32_t threads = 0;            // worker threads of a CPU backend; 0 elsewhere
  int64_t memory_bytes = 0;       // memory of the device
  bool unified_memory = false;    // backend memory can be read and written by the host directly
  bool lazy_memory = false;       // memory is committed as it is touched
  bool transposed_base = false;   // slots keep the base as [HV, V, K]
  bool merges_sequences = false;  // one call may prefill several sequences
  bool replays_steps = false;     // IssueOrReplay may replay
  std::string graphs;             // for people: whether steps are replayed and why; empty where they never are
  // kSequenceGemm gives a row the same bits among any number of rows up to this one.
  int64_t stable_gemm_rows = std::numeric_limits<int64_t>::max();
  // Projections take weights of these formats; others are refused, UNIMPLEMENTED.
  uint32_t weight_formats = kPlainWeights;

  bool TakesWeights(WeightFormat format) const { return (weight_formats & WeightFormatBit(format)) != 0; }
};

// What a launch brings to the device.
struct StageInParams {
  void* device = nullptr;
  void* host = nullptr;  // the arrays are written behind `bytes`
  size_t bytes = 0;      // a multiple of 64
  PackedBatch batch;
  // [sequences], or null where the operators do not need them.
  const int64_t* token_counts = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* base_slots = nullptr;
  const MaterializeStateParams* fold = nullptr;  // of no more entries than the batch has sequences
};

// A step that comes again and again. `key` says all that its launches' arguments hold but for where the arrays are.
struct ReplayableStep {
  std::string key;
  PackedBatch batch;
  const int64_t* token_counts = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* base_slots = nullptr;
};

// A point in what was issued; null: passed.
struct Fence {
  void* event = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // The defaults of what follows, up to the operators, are for unified memory that is the host's, reserved at once and
  // committed as it is touched, and for operators that have finished when they return.

  // Zeroed memory, 64-byte aligned. Where info().lazy_memory, a state pool may be reserved whole.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is not enough.
  virtual absl::StatusOr<void*> Allocate(size_t bytes);
  virtual void Free(void* data, size_t bytes);
  virtual absl::Status CopyIn(void* device, const void* host, size_t bytes);
  virtual absl::Status CopyOut(void* host, const void* device, size_t bytes);
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
  // Within backend memory, in the order of operators and copies. The ranges do not overlap.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes);
  // Many of them, in any order. The default copies one after the other.
  virtual absl::Status CopyPieces(absl::Span<const CopyPiece> pieces);
  // Memory that Allocate could still give now; info().memory_bytes where that is not known.
  virtual int64_t FreeMemoryBytes() { return info().memory_bytes; }

  // Host memory for transfers, page-locked where that makes them faster; 64-byte aligned, its contents undefined.
  // RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) where there is not enough.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes);
  virtual void FreeHost(void* data, size_t bytes);
  // Moves states beside the operators: from any thread, several at a time, complete on return. Not ordered with
  // operators and copies: the caller sees to it that none of those which touch the device range is under way. Any host
  // memory will do; AllocateHost's is the fastest.
  virtual absl::Status TransferOut(void* host, const void* device, size_t bytes);
  virtual absl::Status TransferIn(void* device, const void* host, size_t bytes);

  // A launch's way through a device that works behind the host: bytes in, operators, bytes out, a fence. Several
  // launches may be on their way; host memory is AllocateHost's, and nobody touches it or the device's ranges until the
  // launch's fence has passed. The defaults do everything at once.

  // To be called by a thread before it issues the first of a launch.
  virtual absl::Status UseThread() { return absl::OkStatus(); }
  // Bytes that StageIn needs at the end of `host` and `device` for the arrays of that many sequences, and of a fold.
  virtual size_t BatchArrayBytes(int32_t /*sequences*/) const { return 0; }
  // `bytes` from host to device, there before what is issued from now on; and beside them the arrays, so that operators
  // which are given equal ones need not send them.
  virtual absl::Status StageIn(const StageInParams& params);
  // More of what a launch brings, without arrays; there before what is issued from now on.
  virtual absl::Status StagePiece(void* device, const void* host, size_t bytes);
  // To host memory, behind what was issued before; complete once a fence made from now on has passed.
  virtual absl::Status StageOut(void* host, const void* device, size_t bytes);
  // Passes when everything issued before has run. To be waited for once.
  virtual absl::StatusOr<Fence> MakeFence() { return Fence{}; }
  // Reports what failed. It polls while that is likely to be soon enough, then sleeps.
  virtual absl::Status WaitFence(Fence /*fence*/) { return absl::OkStatus(); }

  // Runs `issue`, which issues a step's operators, or replays what they launched for an equal key. `issue` changes
  // nothing that its caller sees, and may run twice, the first time in vain. A step is replayed where the launch's
  // StageIn brought its arrays.
  virtual absl::Status IssueOrReplay(const ReplayableStep& /*step*/, absl::FunctionRef<absl::Status()> issue) {
    return issue();
  }

  // Runs `issue`, which issues operators and copies within backend memory, in vain: nothing is computed, launched or
  // copied, and all that they need is acquired (scratch memory, workspaces, index arrays on the device, kernels' code).
  // The same operators, issued next, do not fail for want of it. `issue` changes nothing that its caller sees. The
  // default is for operators that acquire nothing.
  virtual absl::Status Prepare(absl::FunctionRef<absl::Status()> /*issue*/) { return absl::OkStatus(); }

  // Weights as this backend's projections read them, maybe in another order than a file's: their bytes, the scales of
  // F8_E4M3 aside, and the way to `device` from `host`, which has a file's layout in host memory (scales too). There
  // before operators that are issued from now on. INVALID_ARGUMENT where the backend cannot take the values.
  virtual int64_t WeightBytes(WeightFormat format, int64_t rows, int64_t cols) const;
  virtual absl::Status CopyWeightsIn(void* device, const WeightMatrix& host);

  // Makes a slot fresh, in the order of operators and copies.
  virtual absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot);

  virtual absl::Status Projection(const ProjectionParams& params) = 0;
  virtual absl::Status QkvzSplit(const QkvzSplitParams& params) = 0;
  virtual absl::Status CausalConv1d(const CausalConv1dParams& params) = 0;
  virtual absl::Status Gating(const GatingParams& params) = 0;
  virtual absl::Status QkL2Norm(const QkL2NormParams& params) = 0;
  virtual absl::Status DeltaRuleChunk(const DeltaRuleParams& params) = 0;
  virtual absl::Status DeltaRuleScan(const DeltaRuleParams& params) = 0;
  virtual absl::Status DeltaRuleDecode(const DeltaRuleDecodeParams& params) = 0;
  virtual absl::Status MaterializeState(const MaterializeStateParams& params) = 0;
  virtual absl::Status GatedRmsNorm(const GatedRmsNormParams& params) = 0;
  virtual absl::Status Convert(const ConvertParams& params) { return ConvertCpu(params); }

  // Fused forms, with the bits of the operators they stand for; the defaults call those one by one.
  // Up to 4 projections that share x, rows and path.
  virtual absl::Status Projections(absl::Span<const ProjectionParams> params);
  virtual absl::Status MixerInput(const MixerInputParams& params);
  // Floats of MixerInputParams::records that DeltaRuleDecode is quicker with; 0 where it takes none.
  virtual int64_t DecodeRecordFloats(const StateLayout& /*layout*/, const PackedBatch& /*batch*/) const { return 0; }
};

// Memory of a backend with an owner: Allocate's, or AllocateHost's.
template <absl::StatusOr<void*> (Backend::*kAllocate)(size_t), void (Backend::*kFree)(void*, size_t)>
class OwnedBuffer {
 public:
  static absl::StatusOr<OwnedBuffer> Make(Backend& backend, size_t bytes) {
    absl::StatusOr<void*> data = (backend.*kAllocate)(bytes);
    if (!data.ok()) return data.status();
    OwnedBuffer buffer;
    buffer.backend_ = &backend;
    buffer.data_ = *data;
    buffer.bytes_ = bytes;
    return buffer;
  }

  OwnedBuffer() = default;
  OwnedBuffer(OwnedBuffer&& other) noexcept { *this = std::move(other); }
  OwnedBuffer& operator=(OwnedBuffer&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~OwnedBuffer() {
    if (data_ != nullptr) (backend_->*kFree)(data_, bytes_);
  }

  void* data() const { return data_; }
  float* floats() const { return static_cast<float*>(data_); }
  size_t bytes() const { return bytes_; }

 private:
  Backend* backend_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

using DeviceBuffer = OwnedBuffer<&Backend::Allocate, &Backend::Free>;
using HostBuffer = OwnedBuffer<&Backend::AllocateHost, &Backend::FreeHost>;

}  // namespace gdn
