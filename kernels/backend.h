// The interface between the layer and the hardware: memory, transfers, and one function for each operator.
//
// Thread safety: any thread may call info(), Allocate, Free, the host memory functions, the transfers and WaitFence.
// One thread at a time issues operators and copies. These run in the order of issue, maybe after the call returns;
// Synchronize() waits for all of them and returns their first failure.
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
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/product_math.h"
#include "kernels/common/state_layout.h"
#include "kernels/convert/convert.h"
#include "kernels/copy_pieces/copy_pieces.h"
#include "kernels/mixed_decode/mixed_decode.h"
#include "kernels/mixer_input/mixer_input.h"
#include "kernels/operators.h"

namespace gdn {

// Returns the bit that stands for a format in BackendInfo::weight_formats.
constexpr uint32_t WeightFormatBit(WeightFormat format) { return 1u << static_cast<uint32_t>(format); }
inline constexpr uint32_t kPlainWeights =
    WeightFormatBit(WeightFormat::kF32) | WeightFormatBit(WeightFormat::kF16) | WeightFormatBit(WeightFormat::kBF16);
inline constexpr uint32_t kAllWeights = [] {
  uint32_t bits = 0;
  for (const WeightFormat format : kWeightFormats) bits |= WeightFormatBit(format);
  return bits;
}();

struct BackendInfo {
  std::string name;    // "cpu", "gpu", "host", "null"
  std::string device;  // for people: the processor's or card's name
  // Opaque. Backends with equal ids compute equal bits: it names the device kind, instruction set, toolkit, kernel
  // version, log length, chunk length and math.
  std::string numerics_id;
  int32_t threads = 0;            // worker threads of a CPU backend; 0 elsewhere
  int64_t memory_bytes = 0;       // host: memory this process may use; GPU: what was free when the backend was made
  bool unified_memory = false;    // backend memory can be read and written by the host directly
  bool lazy_memory = false;       // Allocate only reserves; memory is committed when it is first touched
  bool transposed_base = false;   // slots keep the base as [HV, V, K], not [HV, K, V]
  bool merges_sequences = false;  // a layer should prefill several sequences in one call, not one by one
  bool replays_steps = false;     // IssueOrReplay may replay; false: it always calls `issue`
  std::string graphs;             // for people: whether steps are replayed and why; empty if the backend never does
  // Projections on the path kSequenceGemm compute a row with the same bits for any number of rows up to this
  // (inclusive).
  int64_t stable_gemm_rows = std::numeric_limits<int64_t>::max();
  // How projections of a layer multiply. An operator itself does as its params say.
  ProductMath math = ProductMath::kExact;
  // True if projections multiply fp16 numbers, for which plain weights need scales (RowScalesFor), and others a mark
  // (IntegerHalvesFor).
  bool takes_halves = false;
  // Bits (WeightFormatBit) of the formats that projections accept. Weights in other formats must be unpacked first.
  uint32_t weight_formats = kPlainWeights;

  bool TakesWeights(WeightFormat format) const { return (weight_formats & WeightFormatBit(format)) != 0; }
  // Returns the scales that `weight`, in host memory, should have for projections here; none if it should not.
  // `meets_calls`: its inputs are a call's, which may be BF16 or F16; those of a layer's other matrices are float32.
  std::vector<float> RowScalesFor(const WeightMatrix& weight, bool meets_calls = true) const;
  // Returns WeightMatrix::integer_halves for projections here.
  bool IntegerHalvesFor(WeightFormat format) const { return takes_halves && HasHalfProducts(format); }
};

// The bytes and index arrays that a launch copies to the device. Nothing is owned. `host` and `device` each have room
// for `bytes` + BatchArrayBytes(batch.sequences) bytes.
struct StageInParams {
  void* device = nullptr;
  void* host = nullptr;  // holds `bytes` bytes of data; StageIn writes the arrays behind them
  size_t bytes = 0;      // a multiple of 64
  PackedBatch batch;
  // Host memory, [sequences] each, with the values that the launch's operators get. Null if none of them needs it.
  const int64_t* token_counts = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* base_slots = nullptr;
  const MaterializeStateParams* fold = nullptr;  // of the launch's MaterializeState: count <= sequences; null: none
};

// A decode step that may recur. `key` determines every argument of the step's kernels except the addresses of its index
// arrays. The arrays are those that the step's operators get: host memory, [sequences] each, not owned.
struct ReplayableStep {
  std::string key;
  PackedBatch batch;
  const int64_t* token_counts = nullptr;
  const int32_t* log_lengths = nullptr;
  const int32_t* base_slots = nullptr;
};

// A point in the order of issue. MakeFence makes it, WaitFence takes it back. Null: all before it has already run.
struct Fence {
  void* point = nullptr;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const BackendInfo& info() const = 0;

  // The defaults up to the operators are for backends that use host memory (reserved at once, committed when touched)
  // and whose operators have finished when they return.

  // Returns zeroed memory, 64-byte aligned; the caller gives it to Free with the same byte count. If
  // info().lazy_memory, it is only reserved until touched. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is not
  // enough.
  virtual absl::StatusOr<void*> Allocate(size_t bytes);
  virtual void Free(void* data, size_t bytes);
  // CopyIn copies host memory to backend memory, CopyOut the reverse, in the order of issue with operators. The caller
  // may change `host` when CopyIn returns, and read it when CopyOut does.
  virtual absl::Status CopyIn(void* device, const void* host, size_t bytes);
  virtual absl::Status CopyOut(void* host, const void* device, size_t bytes);
  // Blocks until all issued operators and copies have run, and returns their first failure.
  virtual absl::Status Synchronize() { return absl::OkStatus(); }
  // Copies within backend memory, in the order of issue with operators and other copies; may return before it has run.
  // The ranges must not overlap.
  virtual absl::Status Copy(void* to, const void* from, size_t bytes);
  // Copies many pieces within backend memory, ordered as Copy, but among themselves in any order: no piece may write
  // what another reads or writes. INVALID_ARGUMENT if ValidateCopyPieces refuses them. The default copies one by one.
  virtual absl::Status CopyPieces(absl::Span<const CopyPiece> pieces);
  // Returns the bytes that Allocate could still return now; info().memory_bytes if the backend cannot know; 0 if the
  // device fails to answer.
  virtual int64_t FreeMemoryBytes() { return info().memory_bytes; }

  // Returns host memory for transfers: 64-byte aligned, uninitialised, page-locked if that makes transfers faster. The
  // caller gives it to FreeHost. RESOURCE_EXHAUSTED (STATE_BUDGET_EXHAUSTED) if there is not enough.
  virtual absl::StatusOr<void*> AllocateHost(size_t bytes);
  virtual void FreeHost(void* data, size_t bytes);
  // TransferOut copies backend memory to the host, TransferIn the reverse, concurrently with operators. Any thread,
  // several at a time; complete on return. Not ordered with operators and copies: the caller ensures that none that
  // touches the device range is in flight. Any host memory works; AllocateHost's is the fastest.
  virtual absl::Status TransferOut(void* host, const void* device, size_t bytes);
  virtual absl::Status TransferIn(void* device, const void* host, size_t bytes);

  // The stages of a launch on an asynchronous device: copy in, operators, copy out, fence. Several launches may be in
  // flight. Host memory must come from AllocateHost, and nobody may touch it or the device ranges until the launch's
  // fence has passed. The defaults do everything synchronously.

  // Binds the calling thread to the device. Call before the thread issues the first operation of a launch. The arrays
  // that an earlier launch's StageIn staged are no longer used.
  virtual absl::Status UseThread() { return absl::OkStatus(); }
  // Returns the bytes that StageIn needs behind StageInParams::bytes, in `host` and in `device`, for the arrays of
  // `sequences` sequences and a fold.
  virtual size_t BatchArrayBytes(int32_t /*sequences*/) const { return 0; }
  // Copies `bytes` bytes and the index arrays from host to device, before anything issued later runs. Operators that
  // are given equal arrays then use the staged ones and send nothing. `host` stays in use until a later fence passes.
  virtual absl::Status StageIn(const StageInParams& params);
  // Copies more of a launch's bytes to the device, without arrays, before anything issued later runs. `host` stays in
  // use until a later fence passes.
  virtual absl::Status StagePiece(void* device, const void* host, size_t bytes);
  // Copies to host memory, after everything issued before. Complete when a fence made later has passed.
  virtual absl::Status StageOut(void* host, const void* device, size_t bytes);
  // Returns a fence that passes when everything issued before has run. Give it to WaitFence exactly once.
  virtual absl::StatusOr<Fence> MakeFence() { return Fence{}; }
  // Blocks until the fence passes; at once for a null one. Fails if the device has failed. Polls for half a
  // millisecond, then sleeps.
  virtual absl::Status WaitFence(Fence /*fence*/) { return absl::OkStatus(); }

  // Runs `issue`, which issues a step's operators, or replays what it launched for an equal key. `issue` must have no
  // effect that its caller sees, because it may run twice, the first time without effect on the device. A step is
  // replayed only if its launch's StageIn staged its arrays. Returns the failure of `issue` or of the replay.
  virtual absl::Status IssueOrReplay(const ReplayableStep& /*step*/, absl::FunctionRef<absl::Status()> issue) {
    return issue();
  }

  // Dry run: calls `issue`, which issues operators and copies within backend memory, without computing, launching or
  // copying anything. It acquires all they need (scratch memory, workspaces, index arrays on the device, kernel code),
  // so that the same operators, issued next, do not fail for want of it. `issue` must have no effect that its caller
  // sees. The default is for operators that acquire nothing.
  virtual absl::Status Prepare(absl::FunctionRef<absl::Status()> /*issue*/) { return absl::OkStatus(); }

  // WeightBytes: bytes of a matrix in the order in which this backend's projections read it, without its scales. Of
  // `weight`, data and what scales point to are not read.
  // CopyWeightsIn: copies host.data (file layout, host memory) to `device` in that order, before operators issued later
  // run. host.scales (host memory) may be used, but the caller copies them. INVALID_ARGUMENT if the backend cannot
  // represent the values, RESOURCE_EXHAUSTED if the host has no memory to reorder them.
  virtual int64_t WeightBytes(const WeightMatrix& weight) const;
  virtual absl::Status CopyWeightsIn(void* device, const WeightMatrix& host);

  // Zeroes all of a slot, ordered with operators and copies. INVALID_ARGUMENT if `slot` is not one of the pool's.
  virtual absl::Status ZeroSlot(const StatePoolView& pool, int32_t slot);

  // The operators of operators.h. An override checks the params first. INVALID_ARGUMENT if they break the contract.
#define GDN_DECLARE_OPERATOR(Name, Params, Check) virtual absl::Status Name(const Params& params) = 0;
  GDN_OPERATORS(GDN_DECLARE_OPERATOR)
#undef GDN_DECLARE_OPERATOR

  virtual absl::Status Convert(const ConvertParams& params) { return ConvertCpu(params); }

  // Fused operators, with the same bits as the operators they replace; the defaults call those one by one. Projections
  // takes 1 to 4 projections that share x, x_stride, rows, path and weight.cols. INVALID_ARGUMENT as for the operators.
  virtual absl::Status Projections(absl::Span<const ProjectionParams> params);
  virtual absl::Status MixerInput(const MixerInputParams& params);
  virtual absl::Status MixedDecode(const MixedDecodeParams& params);
  // Returns how many floats MixerInputParams::records must have, so that MixerInput prepares log data that makes the
  // DeltaRuleDecode of the same batch faster. 0: the backend uses no records.
  virtual int64_t DecodeRecordFloats(const StateLayout& /*layout*/, const PackedBatch& /*batch*/) const { return 0; }
  // True if the projection takes x_terms in place of x; x and y need no data for the answer. The operator that makes x
  // then saves the projection a launch.
  virtual bool TakesTerms(const ProjectionParams& /*params*/) const { return false; }
  // True if MixedDecode is faster than the three operators with these params, which must be valid.
  virtual bool FusesMixedDecode(const MixedDecodeParams& /*params*/) const { return false; }
};

// A RAII owner of memory from Allocate or AllocateHost; the backend must outlive it. Owns nothing if
// default-constructed.
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
