#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"

namespace gdn {
namespace {

constexpr int32_t kMaxCount = 0x7fffffff;

struct NamedStride {
  const char* name;
  int64_t stride;
  int64_t row;
};

absl::Status ValidateBatch(const char* op, const ChunkedBatch& batch) {
  GDN_RETURN_IF_ERROR(ValidateLayerDims(batch.dims));
  if (batch.chunk_tokens != 16 && batch.chunk_tokens != 32 && batch.chunk_tokens != 64) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     absl::StrCat(op, ": chunk_tokens is ", batch.chunk_tokens, "; expected 16, 32 or 64"),
                     {{"field", "chunk_tokens"}});
  }
  GDN_RETURN_IF_ERROR(RequireRange(op, "sequences", batch.sequences, 0, kMaxCount));
  GDN_RETURN_IF_ERROR(RequireRange(op, "tokens", batch.tokens, 0, batch.sequences == 0 ? 0 : kMaxCount));
  // Every sequence may end with a tail.
  const int64_t full = batch.tokens / batch.chunk_tokens;
  const int64_t fewest = full + (batch.tokens % batch.chunk_tokens != 0 ? 1 : 0);
  const int64_t most = full + batch.sequences < batch.tokens ? full + batch.sequences : batch.tokens;
  GDN_RETURN_IF_ERROR(RequireRange(op, "chunks", batch.chunks, fewest, most));
  if (batch.sequences == 0) return absl::OkStatus();
  return RequirePointers(op, {{"cu_seqlens", batch.cu_seqlens}, {"chunk_offsets", batch.chunk_offsets}});
}

// Pointers and strides only matter where there are tokens.
absl::Status ValidateTensors(const char* op, const ChunkedBatch& batch, std::initializer_list<NamedPointer> pointers,
                             std::initializer_list<NamedStride> strides = {}) {
  GDN_RETURN_IF_ERROR(ValidateBatch(op, batch));
  if (batch.tokens == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(op, pointers));
  for (const auto& [name, stride, row] : strides) GDN_RETURN_IF_ERROR(RequireAtLeast(op, name, stride, row));
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateStage(const ChunkDecaySumsParams& p) {
  return ValidateTensors("ChunkDecaySums", p.batch, {{"g", p.g}, {"g_sum", p.g_sum}});
}

absl::Status ValidateStage(const ChunkKktParams& p) {
  return ValidateTensors("ChunkKkt", p.batch, {{"k", p.k}, {"beta", p.beta}, {"a", p.a}},
                         {{"k_stride", p.k_stride, p.batch.dims.key_features()}});
}

absl::Status ValidateStage(const CumsumKktParams& p) {
  return ValidateTensors("CumsumKkt", p.batch,
                         {{"k", p.k}, {"g", p.g}, {"beta", p.beta}, {"g_sum", p.g_sum}, {"a", p.a}},
                         {{"k_stride", p.k_stride, p.batch.dims.key_features()}});
}

absl::Status ValidateStage(const ChunkDecayMaskParams& p) {
  return ValidateTensors("ChunkDecayMask", p.batch, {{"g_sum", p.g_sum}, {"mask", p.mask}});
}

absl::Status ValidateStage(const ChunkAttentionParams& p) {
  return ValidateTensors(
      "ChunkAttention", p.batch, {{"q", p.q}, {"k", p.k}, {"attention", p.attention}},
      {{"q_stride", p.q_stride, p.batch.dims.key_features()}, {"k_stride", p.k_stride, p.batch.dims.key_features()}});
}

absl::Status ValidateStage(const WyParams& p) {
  return ValidateTensors(
      "Wy", p.batch, {{"t", p.t}, {"k", p.k}, {"v", p.v}, {"beta", p.beta}, {"g_sum", p.g_sum}, {"w", p.w}, {"u", p.u}},
      {{"k_stride", p.k_stride, p.batch.dims.key_features()}, {"v_stride", p.v_stride, p.batch.dims.value_features()}});
}

absl::Status ValidateStage(const ChunkStateParams& p) {
  GDN_RETURN_IF_ERROR(ValidateTensors(
      "ChunkState", p.batch, {{"k", p.k}, {"w", p.w}, {"u", p.u}, {"g_sum", p.g_sum}, {"h", p.h}, {"v_new", p.v_new}},
      {{"k_stride", p.k_stride, p.batch.dims.key_features()}}));
  // A sequence without tokens has a final state too.
  return p.batch.sequences == 0 ? absl::OkStatus() : RequirePointer("ChunkState", "final_state", p.final_state);
}

absl::Status ValidateStage(const ChunkOutputParams& p) {
  return ValidateTensors("ChunkOutput", p.batch,
                         {{"q", p.q},
                          {"h", p.h},
                          {"attention", p.attention},
                          {"v_new", p.v_new},
                          {"g_sum", p.g_sum},
                          {"output", p.output}},
                         {{"q_stride", p.q_stride, p.batch.dims.key_features()}});
}

}  // namespace gdn
