// The decode path: the delta rule with a deferred state update. A step reads the base once and writes only a log entry.
//
// Base S0 plus a log of (k_i, u_i, g_i); G is the running sum of g since the base (double), per value head:
//   pred = exp(G_t) S0^T k_t + sum_{i<t} exp(G_t - G_i) (k_i . k_t) u_i        u_t = beta (v_t - pred)
//   o    = exp(G_t) S0^T q_t + sum_{i<=t} exp(G_t - G_i) (k_i . q_t) u_i
// and once the log holds L = kLogCapacity tokens it is folded:  S0 <- exp(G_L) S0 + sum_i exp(G_L - G_i) k_i u_i^T.
// Where the dims decay by channel, G is a vector over K: exp(G_t) scales k_t and q_t before S0^T, and
// (k_i . k_t) becomes sum_c k_i[c] exp(G_t[c] - G_i[c]) k_t[c]. The log keeps g as it came: logged keys are never
// decayed in place, as drafts are rolled back.
// The folded base is rounded to the layout's base_dtype(), a draft's too.
// A call of T tokens gives the same bits as T calls of one. Thread safety and bits: as delta_rule_scan.
//
//   int32_t log_lengths[] = {3, 15};
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleDecode({params, log_lengths}));  // log_lengths is now {4, 0}
#pragma once

#include <cstdint>

#include "base/thread_pool.h"
#include "kernels/common/delta_rule.h"
#include "kernels/gpu/stream.h"

namespace gdn {

struct DeltaRuleDecodeParams {
  DeltaRuleParams rule;            // each length <= layout.max_draft()
  int32_t* log_lengths = nullptr;  // [sequences] host memory, in: entries in use, < L; out: after the call
  // [sequences] host memory: the slot each base is read from, nobody else's in `batch.slots`; nullptr: `batch.slots`.
  // Log and convolution columns are always those of `batch.slots`, and so is the base that a fold writes.
  const int32_t* base_slots = nullptr;
  // The tokens may yet be dropped: nothing that was there before is overwritten. Bases stay as they are, and the call's
  // T entries follow the log's, past L where need be (log_lengths come out as length + T). Outputs, and the entries'
  // bits, are those of a call that folds.
  bool draft = false;
  // What MixerInput wrote to `records` for the same batch, log lengths and bases, where DecodeRecordFloats is not 0.
  const float* records = nullptr;
};

// Folds the logs of `src` slots into the bases of `dst` slots, and copies the convolution columns; dst logs count as
// empty. A negative source stands for a fresh state, all zero. dst[i] == src[i] folds in place. The start of every
// prefill and restore.
struct MaterializeStateParams {
  StatePoolView pool;
  int32_t count = 0;
  const int32_t* src = nullptr;          // [count] host memory
  const int32_t* dst = nullptr;          // [count] host memory, distinct, >= 0
  const int32_t* log_lengths = nullptr;  // [count] host memory, entries in use in src
  const int32_t* src_bases = nullptr;    // [count] host memory, the slots that hold the sources' bases; nullptr: src
};

absl::Status ValidateDeltaRuleDecode(const DeltaRuleDecodeParams& params);
// The part of it that is not about tensors. The batch is valid, `base_slots` may be null.
absl::Status ValidateDecodeLogs(absl::string_view op, const StatePoolView& pool, const PackedBatch& batch,
                                const int32_t* log_lengths, const int32_t* base_slots);
// Brings log_lengths to what they are after the call: logs grow, and are empty after a fold, which a draft does not do.
void AdvanceLogs(const DeltaRuleDecodeParams& params);
absl::Status ValidateMaterializeState(const MaterializeStateParams& params);
// The same for a caller whose arrays have names of their own.
struct FoldNames {
  absl::string_view op, src, dst, src_bases;
};
absl::Status ValidateFold(const FoldNames& names, const MaterializeStateParams& params);

// Double-precision references on host memory; stored values (log, base) are rounded to the layout's dtypes as the fast
// path's are.
void DeltaRuleDecodeReference(const DeltaRuleDecodeParams& params);
void MaterializeStateReference(const MaterializeStateParams& params);

absl::Status DeltaRuleDecodeCpu(const DeltaRuleDecodeParams& params, ThreadPool& pool);
absl::Status MaterializeStateCpu(const MaterializeStateParams& params, ThreadPool& pool);

// Bases are [HV][V][K] in device memory; index arrays are needed twice: params' on the host, the others on the device,
// with the same values, null where params' are. The host's log_lengths are those after the call as soon as it returns;
// the device's stay as they are. One launch for a token a sequence or a draft, two for more.
// workspace: device memory of DeltaRuleDecodeGpuWorkspaceFloats.
// Records are what a step of one token takes from the log; DecodeRecordsGpu finds those of a batch whose
// DecodeRecordFloatsGpu is not 0.
inline constexpr int64_t kDecodeRecordFloats = 80;  // of a sequence and value head
int64_t DecodeRecordFloatsGpu(const StateLayout& layout, const PackedBatch& batch, const gpu::Stream& stream);
absl::Status DecodeRecordsGpu(const DeltaRuleParams& rule, const gpu::DeviceBatch& batch, float* records,
                              const gpu::Stream& stream);
int64_t DeltaRuleDecodeGpuWorkspaceFloats(const DeltaRuleDecodeParams& params, const gpu::Stream& stream);
absl::Status DeltaRuleDecodeGpu(const DeltaRuleDecodeParams& params, const gpu::DeviceBatch& batch, float* workspace,
                                const gpu::Stream& stream);
absl::Status MaterializeStateGpu(const MaterializeStateParams& params, const int32_t* device_src,
                                 const int32_t* device_dst, const int32_t* device_log_lengths,
                                 const int32_t* device_src_bases, const gpu::Stream& stream);

}  // namespace gdn
