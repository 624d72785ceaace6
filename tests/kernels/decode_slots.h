// Runs delta rule calls on state slots in the memory of any backend.
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

// The operator that advances a state.
enum class DeltaRulePath { kScan, kChunk, kDecode };
inline constexpr DeltaRulePath kDeltaRulePaths[] = {DeltaRulePath::kScan, DeltaRulePath::kChunk,
                                                    DeltaRulePath::kDecode};
const char* DeltaRulePathName(DeltaRulePath path);  // "Scan", "Chunk", "Decode"

// A session's slot, the slot with its base, and the length of its log.
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

  // Sets the slot's base [HV, K, V], and everything else to zero.
  void SetBase(int32_t slot, absl::Span<const float> base);
  std::vector<float> Base(int32_t slot) { return Read(slot, 0).base; }
  void Write(int32_t slot, const SlotImage& image);
  // Fills only the slot's base, which must be float32, with NaN.
  void PoisonBase(int32_t slot);
  void Copy(int32_t to, int32_t from);
  SlotImage Read(int32_t slot, int32_t log_length);
  std::vector<float> ReadAll(int32_t slot);  // all floats of the slot in memory order

  // Decodes, updates `logs` and returns the outputs. Errors fail the test. Bases are passed if one is not in its slot.
  std::vector<float> Decode(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths, std::vector<Log>& logs,
                            bool draft = false);
  std::vector<float> Decode(const DeltaRuleInputs& inputs, Log& log, bool draft = false);
  // Runs sequences of these lengths, end to end in `inputs`, on `slots`. Logs are empty before and after: kDecode makes
  // calls of at most max_draft tokens, and folds at the end.
  std::vector<float> Run(DeltaRulePath path, const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                         const std::vector<int32_t>& slots);
  // Runs one sequence.
  std::vector<float> Run(DeltaRulePath path, const DeltaRuleInputs& inputs, int32_t slot = 0) {
    return Run(path, inputs, {static_cast<int32_t>(inputs.tokens)}, {slot});
  }
  absl::Status Materialize(const std::vector<int32_t>& src, const std::vector<int32_t>& dst,
                           const std::vector<int32_t>& log_lengths, const std::vector<int32_t>& src_bases = {});

 private:
  // Calls run(params) and returns the outputs. The test fails on an error.
  std::vector<float> Call(const DeltaRuleInputs& inputs, const std::vector<int32_t>& lengths,
                          const std::vector<int32_t>& slots,
                          const std::function<absl::Status(const DeltaRuleParams&)>& run);

  Backend& backend_;
  StatePoolView pool_;
  DeviceBuffer memory_;
};

}  // namespace gdn
