#include <cstring>

#include "kernels/common/parallel.h"
#include "kernels/qkvz_split/qkvz_split.h"

namespace gdn {
namespace {

constexpr int64_t kRowsPerTask = 4;

// Copies `count` floats and returns where the source goes on.
const float* Take(const float* src, int64_t count, float* dst) {
  std::memcpy(dst, src, count * sizeof(float));
  return src + count;
}

// Where one row of each output starts.
struct SplitRow {
  float* q;
  float* k;
  float* v;
  float* z;
  float* b;
  float* a;
};

// `groups` runs of [q | k | v | z] and of [b | a]: the key heads of the interleaved layout, or one run of all heads.
void SplitGroups(const float* qkvz, const float* ba, int64_t groups, int64_t key, int64_t value, int64_t heads,
                 const SplitRow& out) {
  for (int64_t g = 0; g < groups; ++g) {
    qkvz = Take(qkvz, key, out.q + g * key);
    qkvz = Take(qkvz, key, out.k + g * key);
    qkvz = Take(qkvz, value, out.v + g * value);
    qkvz = Take(qkvz, value, out.z + g * value);
    ba = Take(ba, heads, out.b + g * heads);
    ba = Take(ba, heads, out.a + g * heads);
  }
}

}  // namespace

absl::Status QkvzSplitCpu(const QkvzSplitParams& params, ThreadPool& pool) {
  const LayerDims& dims = params.dims;
  const int64_t groups = params.layout == ProjectionLayout::kInterleaved ? dims.key_heads : 1;
  const int64_t features = dims.conv_channels() + dims.value_features();
  ParallelForRows(pool, params.rows * features, params.rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) {
      float* mixed = params.mixed_qkv + row * dims.conv_channels();
      const SplitRow out{.q = mixed,
                         .k = mixed + dims.key_features(),
                         .v = mixed + 2 * dims.key_features(),
                         .z = params.z + row * dims.value_features(),
                         .b = params.b + row * dims.value_heads,
                         .a = params.a + row * dims.value_heads};
      SplitGroups(params.qkvz + row * features, params.ba + row * 2 * dims.value_heads, groups,
                  dims.key_features() / groups, dims.value_features() / groups, dims.value_heads / groups, out);
    }
  });
  return absl::OkStatus();
}

}  // namespace gdn
