#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/common/log_decay.h"

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
    return InvalidField(op, "chunk_tokens", "chunk_tokens is ", batch.chunk_tokens, "; expected 16, 32 or 64");
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

struct Chunk {
  int64_t index;  // among all chunks
  int32_t sequence;
  int64_t first;  // token
  int64_t rows;
};

std::vector<Chunk> ListChunks(const ChunkedBatch& batch) {
  std::vector<Chunk> chunks;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    for (int64_t first = batch.cu_seqlens[i]; first < batch.cu_seqlens[i + 1]; first += batch.chunk_tokens) {
      const int64_t left = batch.cu_seqlens[i + 1] - first;
      chunks.push_back({static_cast<int64_t>(chunks.size()), i, first, std::min<int64_t>(left, batch.chunk_tokens)});
    }
  }
  return chunks;
}

template <typename Function>
void ForEachChunkAndHead(const ChunkedBatch& batch, Function&& function) {
  for (const Chunk& chunk : ListChunks(batch)) {
    for (int32_t head = 0; head < batch.dims.value_heads; ++head) function(chunk, head);
  }
}

double Dot(const float* x, const float* y, int32_t count) {
  double sum = 0.0;
  for (int32_t i = 0; i < count; ++i) sum += double{x[i]} * double{y[i]};
  return sum;
}

const float* Row(const float* data, int64_t stride, int64_t token, int32_t head, int32_t dim) {
  return data + token * stride + int64_t{head} * dim;
}

// A [chunks, HV, C, C] tensor: entry(i, j, head), tokens of the batch, times e^{G_i-G_j} (g_sum null: times 1) where j
// comes before i, or is i where `diagonal` says so; else 0.
template <typename Entry>
void FillLower(const ChunkedBatch& batch, const double* g_sum, bool diagonal, float* out, const Entry& entry) {
  const int64_t c = batch.chunk_tokens;
  const int64_t heads = batch.dims.value_heads;
  ForEachChunkAndHead(batch, [&](const Chunk& chunk, int32_t head) {
    float* matrix = out + (chunk.index * heads + head) * c * c;
    std::fill(matrix, matrix + c * c, 0.0f);
    for (int64_t row = 0; row < chunk.rows; ++row) {
      for (int64_t column = 0; column < row + (diagonal ? 1 : 0); ++column) {
        const int64_t i = chunk.first + row, j = chunk.first + column;
        const double decay = g_sum == nullptr ? 1.0 : std::exp(g_sum[i * heads + head] - g_sum[j * heads + head]);
        matrix[row * c + column] = static_cast<float>(entry(i, j, head) * decay);
      }
    }
  });
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

void ChunkDecaySumsReference(const ChunkDecaySumsParams& p) {
  const int64_t heads = p.batch.dims.value_heads;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    double sum = 0.0;
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const int64_t at = (chunk.first + i) * heads + head;
      sum += ClampLogDecay(p.g[at]);
      p.g_sum[at] = sum;
    }
  });
}

void ChunkKktReference(const ChunkKktParams& p) {
  const LayerDims& dims = p.batch.dims;
  FillLower(p.batch, p.g_sum, /*diagonal=*/false, p.a, [&](int64_t i, int64_t j, int32_t head) {
    const float* k_i = Row(p.k, p.k_stride, i, head / dims.group(), dims.key_dim);
    const float* k_j = Row(p.k, p.k_stride, j, head / dims.group(), dims.key_dim);
    return double{p.beta[i * dims.value_heads + head]} * Dot(k_i, k_j, dims.key_dim);
  });
}

void CumsumKktReference(const CumsumKktParams& p) {
  ChunkDecaySumsReference({p.batch, p.g, p.g_sum});
  ChunkKktReference({p.batch, p.k, p.k_stride, p.beta, p.g_sum, p.a});
}

void ChunkDecayMaskReference(const ChunkDecayMaskParams& p) {
  FillLower(p.batch, p.g_sum, /*diagonal=*/true, p.mask, [](int64_t, int64_t, int32_t) { return 1.0; });
}

void ChunkAttentionReference(const ChunkAttentionParams& p) {
  const LayerDims& dims = p.batch.dims;
  FillLower(p.batch, p.g_sum, /*diagonal=*/true, p.attention, [&](int64_t i, int64_t j, int32_t head) {
    return Dot(Row(p.q, p.q_stride, i, head / dims.group(), dims.key_dim),
               Row(p.k, p.k_stride, j, head / dims.group(), dims.key_dim), dims.key_dim);
  });
}

void WyReference(const WyParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    const float* t = p.t + (chunk.index * dims.value_heads + head) * c * c;
    for (int64_t i = 0; i < chunk.rows; ++i) {
      std::vector<double> w(dims.key_dim), u(dims.value_dim);
      for (int64_t j = 0; j <= i; ++j) {
        const int64_t gate = (chunk.first + j) * dims.value_heads + head;
        const double weight = double{t[i * c + j]} * double{p.beta[gate]};
        const double decay = std::exp(p.g_sum[gate]);
        const float* k = Row(p.k, p.k_stride, chunk.first + j, head / dims.group(), dims.key_dim);
        const float* v = Row(p.v, p.v_stride, chunk.first + j, head, dims.value_dim);
        for (int32_t f = 0; f < dims.key_dim; ++f) w[f] += weight * decay * k[f];
        for (int32_t f = 0; f < dims.value_dim; ++f) u[f] += weight * v[f];
      }
      const int64_t row = (chunk.first + i) * dims.value_heads + head;
      std::copy(w.begin(), w.end(), p.w + row * dims.key_dim);
      std::copy(u.begin(), u.end(), p.u + row * dims.value_dim);
    }
  });
}

void ChunkStateReference(const ChunkStateParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t key_dim = dims.key_dim;
  const int64_t value_dim = dims.value_dim;
  const int64_t elements = key_dim * value_dim;
  const std::vector<Chunk> chunks = ListChunks(p.batch);
  for (int32_t sequence = 0; sequence < p.batch.sequences; ++sequence) {
    for (int32_t head = 0; head < dims.value_heads; ++head) {
      const int64_t slot = int64_t{sequence} * dims.value_heads + head;
      // Passed on in double: the stage rounds where it stores, not what it carries.
      std::vector<double> state(elements, 0.0);
      if (p.initial_state != nullptr) {
        std::copy_n(p.initial_state + slot * elements, elements, state.begin());
      }
      for (const Chunk& chunk : chunks) {
        if (chunk.sequence != sequence) continue;
        float* h = p.h + (chunk.index * dims.value_heads + head) * elements;
        std::copy(state.begin(), state.end(), h);
        const double* g = p.g_sum + chunk.first * dims.value_heads + head;
        const double last = g[(chunk.rows - 1) * dims.value_heads];
        std::vector<double> next(state);
        for (double& x : next) x *= std::exp(last);
        for (int64_t i = 0; i < chunk.rows; ++i) {
          const int64_t row = (chunk.first + i) * dims.value_heads + head;
          const float* k = Row(p.k, p.k_stride, chunk.first + i, head / dims.group(), dims.key_dim);
          const double decay = std::exp(last - g[i * dims.value_heads]);
          for (int64_t v = 0; v < value_dim; ++v) {
            double value = p.u[row * value_dim + v];
            for (int64_t f = 0; f < key_dim; ++f) value -= double{p.w[row * key_dim + f]} * state[f * value_dim + v];
            p.v_new[row * value_dim + v] = static_cast<float>(value);
            for (int64_t f = 0; f < key_dim; ++f) next[f * value_dim + v] += decay * k[f] * value;
          }
        }
        state = std::move(next);
      }
      std::copy(state.begin(), state.end(), p.final_state + slot * elements);
    }
  }
}

void ChunkOutputReference(const ChunkOutputParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    const int64_t matrix = chunk.index * dims.value_heads + head;
    const float* h = p.h + matrix * dims.key_dim * dims.value_dim;
    const float* attention = p.attention + matrix * c * c;
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const int64_t row = (chunk.first + i) * dims.value_heads + head;
      const float* q = Row(p.q, p.q_stride, chunk.first + i, head / dims.group(), dims.key_dim);
      for (int32_t v = 0; v < dims.value_dim; ++v) {
        double sum = 0.0;
        for (int32_t f = 0; f < dims.key_dim; ++f) sum += double{q[f]} * double{h[f * dims.value_dim + v]};
        sum *= std::exp(p.g_sum[row]);
        for (int64_t j = 0; j <= i; ++j) {
          const int64_t token = (chunk.first + j) * dims.value_heads + head;
          sum += double{attention[i * c + j]} * double{p.v_new[token * dims.value_dim + v]};
        }
        p.output[row * dims.value_dim + v] = static_cast<float>(sum);
      }
    }
  });
}

}  // namespace gdn
