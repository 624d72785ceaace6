// The decode path: the delta rule with a deferred state update. A step reads the base once and writes only a log entry.
//
// Base S0 plus a log of (k_i, u_i, g_i); G is the running sum of g since the base (double), per value head:
//   pred = exp(G_t) S0^T k_t + sum_{i<t} exp(G_t - G_i) (k_i . k_t) u_i        u_t = beta (v_t - pred)
//   o    = exp(G_t) S0^T q_t + sum_{i<=t} exp(G_t - G_i) (k_i . q_t) u_i
// After L = kLogCapacity tokens the log is folded:  S0 <- exp(G_L) S0 + sum_i exp(G_L - G_i) k_i u_i^T.
// If the dims decay by channel, G is a vector over K: exp(G_t) scales k_t and q_t before S0^T, and (k_i . k_t) becomes
// sum_c k_i[c] exp(G_t[c] - G_i[c]) k_t[c]. Logged keys are never decayed in place, because drafts are rolled back.
// A folded base is rounded to the layout's base_dtype(), also in a draft.
// A call of T tokens gives the same bits as T calls of one. Thread safety and bits: as delta_rule_scan.
//
//   int32_t log_lengths[] = {3, 15};
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleDecode({params, log_lengths}));  // log_lengths is now {4, 0}
#pragma once

#include <cstdint>

#include "base/threads/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct DeltaRuleDecodeParams {
  DeltaRuleParams rule;            // each sequence has at most layout.max_draft() tokens
  int32_t* log_lengths = nullptr;  // [sequences] host memory, in: entries in use, < L; out: after the call
  // [sequences] host memory: slots to read the bases from, none in another sequence's `batch.slots`; nullptr:
  // `batch.slots`. Logs and convolution columns are always those of `batch.slots`; a fold writes its base there too.
  const int32_t* base_slots = nullptr;
  // The tokens may be dropped later, so nothing that exists is overwritten. Bases do not change, and the call's T
  // entries are appended to the log, past L if need be (log_lengths become length + T). Outputs and the entries' bits
  // are those of a call that folds.
  bool draft = false;
  // Backend memory that MixerInput has written for the same batch, log lengths and bases, Backend::DecodeRecordFloats
  // floats. Null, also if that is 0: the decode finds the data itself, with the same bits.
  const float* records = nullptr;

  BatchArrays arrays() const { return {.batch = rule.batch, .log_lengths = log_lengths, .base_slots = base_slots}; }
};

// Folds the logs of `src` slots into the bases of `dst` slots and copies the convolution columns. The dst logs count as
// empty then; the caller keeps the lengths. A negative source means a fresh state: zero base and columns. dst[i] ==
// src[i] folds in place. No other entry may write a slot that an entry reads. Every prefill and restore starts with it.
struct MaterializeStateParams {
  StatePoolView pool;
  int32_t count = 0;
  const int32_t* src = nullptr;          // [count] host memory
  const int32_t* dst = nullptr;          // [count] host memory, distinct, >= 0
  const int32_t* log_lengths = nullptr;  // [count] host memory, entries in use in src, 0 .. layout.log_rows()
  const int32_t* src_bases = nullptr;    // [count] host memory, slots that hold the sources' bases; nullptr: src
};

absl::Status ValidateDeltaRuleDecode(const DeltaRuleDecodeParams& params);
// Checks a decode's arguments that are not tensors. INVALID_ARGUMENT if a sequence has more than max_draft tokens
// (TOO_MANY_TOKENS), a log length is outside 0 .. L - 1, or a base slot is outside the pool or another sequence's slot.
// The batch must be valid; `base_slots` may be null.
absl::Status ValidateDecodeLogs(absl::string_view op, const StatePoolView& pool, const PackedBatch& batch,
                                const int32_t* log_lengths, const int32_t* base_slots);
// Changes log_lengths [sequences] from their values before a decode of `batch` to those after it: each grows by its
// sequence's tokens, modulo L unless it is a draft. Padding stays.
void AdvanceLogs(const PackedBatch& batch, bool draft, int32_t* log_lengths);
inline void AdvanceLogs(const DeltaRuleDecodeParams& params) {
  AdvanceLogs(params.rule.batch, params.draft, params.log_lengths);
}
absl::Status ValidateMaterializeState(const MaterializeStateParams& params);
// The names of the operator and of three of its arguments that ValidateFold's errors use. Not owned.
struct FoldNames {
  absl::string_view op, src, dst, src_bases;
};
// Checks as ValidateMaterializeState, for a caller whose arguments have other names (`names`). INVALID_ARGUMENT names
// the first argument or element that is invalid.
absl::Status ValidateFold(const FoldNames& names, const MaterializeStateParams& params);

// Double-precision references on host memory, with params that must be valid. Stored values (log, base) are rounded to
// the layout's dtypes, as in the fast path. The first updates log_lengths.
void DeltaRuleDecodeReference(const DeltaRuleDecodeParams& params);
void MaterializeStateReference(const MaterializeStateParams& params);

absl::Status DeltaRuleDecodeCpu(const DeltaRuleDecodeParams& params, ThreadPool& pool);
absl::Status MaterializeStateCpu(const MaterializeStateParams& params, ThreadPool& pool);
// Return the number of floats that a call takes from a ScratchArena with a pool of `threads` threads.
int64_t ScratchFloats(const DeltaRuleDecodeParams& params, int threads);
int64_t ScratchFloats(const MaterializeStateParams& params, int threads);

// Bases are [HV][V][K] in device memory. Index arrays are given twice with equal values: params' on the host, the
// others on the device (null if params' are). The host's log_lengths are updated when the call returns; the device's do
// not change. Launches one kernel, one more to find records that are not given, and one more for several tokens a
// sequence unless they are a draft. `workspace` has GpuWorkspaceFloats(params, stream) on the device. DecodeRecordsGpu
// computes the records (log data of a one-token step) of a batch whose DecodeRecordFloatsGpu is not 0.
inline constexpr int64_t kDecodeRecordFloats = 80;  // per sequence and value head
int64_t DecodeRecordFloatsGpu(const StateLayout& layout, const PackedBatch& batch, const gpu::Stream& stream);
absl::Status DecodeRecordsGpu(const DeltaRuleParams& rule, const gpu::DeviceBatch& batch, float* records,
                              const gpu::Stream& stream);
int64_t GpuWorkspaceFloats(const DeltaRuleDecodeParams& params, const gpu::Stream& stream);
absl::Status DeltaRuleDecodeGpu(const DeltaRuleDecodeParams& params, const gpu::DeviceBatch& batch, float* workspace,
                                const gpu::Stream& stream);
absl::Status MaterializeStateGpu(const MaterializeStateParams& params, const gpu::DeviceFold& fold,
                                 const gpu::Stream& stream);

}  // namespace gdn
