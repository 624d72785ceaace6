#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/primitives/delta_rule_stages/delta_rule_stages.h"

namespace gdn {
namespace {

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

// [chunks, HV, C, C]
float* Matrix(const ChunkedBatch& batch, float* data, const Chunk& chunk, int32_t head) {
  const int64_t c = batch.chunk_tokens;
  return data + (chunk.index * batch.dims.value_heads + head) * c * c;
}

const float* Row(const float* data, int64_t stride, int64_t token, int32_t head, int32_t dim) {
  return data + token * stride + int64_t{head} * dim;
}

}  // namespace

void ChunkDecaySumsReference(const ChunkDecaySumsParams& p) {
  const int64_t heads = p.batch.dims.value_heads;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    double sum = 0.0;
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const int64_t at = (chunk.first + i) * heads + head;
      sum += p.g[at];
      p.g_sum[at] = sum;
    }
  });
}

void ChunkKktReference(const ChunkKktParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    float* a = Matrix(p.batch, p.a, chunk, head);
    std::fill(a, a + c * c, 0.0f);
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const int64_t row = (chunk.first + i) * dims.value_heads + head;
      const float* k_i = Row(p.k, p.k_stride, chunk.first + i, head / dims.group(), dims.key_dim);
      for (int64_t j = 0; j < i; ++j) {
        const int64_t column = (chunk.first + j) * dims.value_heads + head;
        const float* k_j = Row(p.k, p.k_stride, chunk.first + j, head / dims.group(), dims.key_dim);
        const double decay = p.g_sum == nullptr ? 1.0 : std::exp(p.g_sum[row] - p.g_sum[column]);
        a[i * c + j] = static_cast<float>(double{p.beta[row]} * Dot(k_i, k_j, dims.key_dim) * decay);
      }
    }
  });
}

void CumsumKktReference(const CumsumKktParams& p) {
  ChunkDecaySumsReference({p.batch, p.g, p.g_sum});
  ChunkKktReference({p.batch, p.k, p.k_stride, p.beta, p.g_sum, p.a});
}

void ChunkDecayMaskReference(const ChunkDecayMaskParams& p) {
  const int64_t heads = p.batch.dims.value_heads;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    float* mask = Matrix(p.batch, p.mask, chunk, head);
    std::fill(mask, mask + c * c, 0.0f);
    for (int64_t i = 0; i < chunk.rows; ++i) {
      for (int64_t j = 0; j <= i; ++j) {
        const double* g = p.g_sum + chunk.first * heads + head;
        mask[i * c + j] = static_cast<float>(std::exp(g[i * heads] - g[j * heads]));
      }
    }
  });
}

void ChunkAttentionReference(const ChunkAttentionParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    float* attention = Matrix(p.batch, p.attention, chunk, head);
    std::fill(attention, attention + c * c, 0.0f);
    for (int64_t i = 0; i < chunk.rows; ++i) {
      const float* q = Row(p.q, p.q_stride, chunk.first + i, head / dims.group(), dims.key_dim);
      for (int64_t j = 0; j <= i; ++j) {
        const float* k = Row(p.k, p.k_stride, chunk.first + j, head / dims.group(), dims.key_dim);
        double decay = 1.0;
        if (p.g_sum != nullptr) {
          const double* g = p.g_sum + chunk.first * dims.value_heads + head;
          decay = std::exp(g[i * dims.value_heads] - g[j * dims.value_heads]);
        }
        attention[i * c + j] = static_cast<float>(Dot(q, k, dims.key_dim) * decay);
      }
    }
  });
}

void WyReference(const WyParams& p) {
  const LayerDims& dims = p.batch.dims;
  const int64_t c = p.batch.chunk_tokens;
  ForEachChunkAndHead(p.batch, [&](const Chunk& chunk, int32_t head) {
    const float* t = p.t + (chunk.index * dims.value_heads + head) * c * c;
    std::vector<double> w(dims.key_dim), u(dims.value_dim);
    for (int64_t i = 0; i < chunk.rows; ++i) {
      std::fill(w.begin(), w.end(), 0.0);
      std::fill(u.begin(), u.end(), 0.0);
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
      for (int32_t f = 0; f < dims.key_dim; ++f) p.w[row * dims.key_dim + f] = static_cast<float>(w[f]);
      for (int32_t f = 0; f < dims.value_dim; ++f) p.u[row * dims.value_dim + f] = static_cast<float>(u[f]);
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
        std::transform(state.begin(), state.end(), h, [](double x) { return static_cast<float>(x); });
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
      std::transform(state.begin(), state.end(), p.final_state + slot * elements,
                     [](double x) { return static_cast<float>(x); });
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
