// Delta rule calls on slots in the memory of any backend.
//
// Thread safety: for one thread. Ownership: DecodeSlots owns its slots; the backend must outlive it.
//
//   DecodeSlots slots(backend, dims, /*slots=*/2, /*max_draft=*/8);
//   std::vector<Log> logs = {{.slot = 0, .base_slot = 1, .length = 3}};
//   std::vector<float> output = slots.Decode(inputs, {4}, logs, /*draft=*/true);
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/slot_access.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn {

// Which operator advances a state.
enum class DeltaRulePath { kScan, kChunk, kDecode };
inline constexpr DeltaRulePath kDeltaRulePaths[] = {DeltaRulePath::kScan, DeltaRulePath::kChunk,
                                                    DeltaRulePath::kDecode};
const char* DeltaRulePathName(DeltaRulePath path);  // "Scan", "Chunk", "Decode"

// What a session knows of its slot.
struct Log {
  int32_t slot = 0;
  int32_t base_slot = 0;
  int32_t length = 0;
};

class DecodeSlots {
 public:
  DecodeSlots(Backend& backend, const LayerDims& dims, int32_t slots, int32_t max_draft = 8,
              DType base_dtype = DType::kF32);

  Backend& backend() { return backend_; }
  const StatePoolView& pool() const { return pool_; }

  // Base [HV, K, V]; all else is zero.
  void SetBase(int32_t slot, absl::Span<const float> base);
  std::vector<float> Base(int32_t slot) { return Read(slot, 0).base; }
  void Write(int32_t slot, const SlotImage& image);
  // Into the slot's base alone, of float32.
  void PoisonBase(int32_t slot);
  void Copy(int32_t to, int32_t from);
  SlotImage Read(int32_t slot, int32_t log_length);
  std::vector<float> ReadAll(int32_t slot);  // as it lies in memory

  // The sequences' outputs; expects success and moves `logs` on. Bases are named only where one is not its log's slot.
  std::vector<float> Decode(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths, std::vector<Log>& logs,
                            bool draft = false);
  std::vector<float> Decode(const DeltaRuleInputs& inputs, Log& log, bool draft = false);
  // Sequences of these lengths end to end, on their slots, whose logs are empty before and after. Decode takes calls of
  // at most max_draft tokens and folds at the end.
  std::vector<float> Run(DeltaRulePath path, const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                         const std::vector<int32_t>& slots);
  // One sequence.
  std::vector<float> Run(DeltaRulePath path, const DeltaRuleInputs& inputs, int32_t slot = 0) {
    return Run(path, inputs, {static_cast<int32_t>(inputs.tokens)}, {slot});
  }
  absl::Status Materialize(const std::vector<int32_t>& src, const std::vector<int32_t>& dst,
                           const std::vector<int32_t>& log_lengths, const std::vector<int32_t>& src_bases = {});

 private:
  // Expects success; the outputs.
  std::vector<float> Call(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                          const std::vector<int32_t>& slots,
                          const std::function<absl::Status(const DeltaRuleParams&)>& run);

  Backend& backend_;
  StatePoolView pool_;
  DeviceBuffer memory_;
};

}  // namespace gdn
