// The deferred delta rule on the GPU for K > 256, a column a group; delta_rule_decode_gpu.hip has the formula and the
// mapping of threads, and bits are as if its kernel took such columns.
//
// Rows of more than 256 elements would fill the registers twice over: the dot products with the log's keys are taken by
// and by, before k and q are loaded whole. Columns that do not fill the lanes stay in memory, and each token reads
// them: the guards of so many registers would not fit the scalar ones. One instance serves every such K. All
// columns of bfloat16 take that way, widened into the workspace first: in registers they would spill.
// Resources: 128 VGPRs for K = 512, 225 for K = 1024; 2 KB of LDS; no spills (gfx906). Bound by memory.

#include "kernels/delta_rule_decode/delta_rule_decode_gpu-inl.h"

namespace gdn::gpu {
namespace {

// The group's columns in the workspace.
__device__ __forceinline__ float* Unwritten(const DecodeArgs& args, const DecodeLane& my) {
  const DeltaRuleArgs& p = args.rule;
  return args.unwritten + my.task.sequence * (int64_t{p.value_heads} * p.value_dim * p.key_dim) + my.column_offset;
}

// The columns there, widened.
__device__ __forceinline__ const float* WidenInMemory(const DecodeArgs& args, const DecodeLane& my, int key_dim,
                                                      const uint16_t* columns) {
  float* wide = Unwritten(args, my);
#pragma unroll 1
  for (int i = my.lane; i < (my.count > 0 ? key_dim : 0); i += kColumnLanes) wide[i] = FromBf16(columns[i]);
  SyncThreads();  // other lanes read what this one wrote
  return wide;
}

// FoldColumns an element at a time, from `columns` to where the folded base goes, which is returned.
template <typename Base, typename Shared>
__device__ __forceinline__ const float* FoldInMemory(const DecodeArgs& args, const DecodeLane& my,
                                                     const DecodeToken& token, int64_t first_row, int log_length,
                                                     const float* columns, Shared& sh) {
  const DeltaRuleArgs& p = args.rule;
  const float decay = sh.decay[token.t % 2];
  float* folded = args.unwritten == nullptr ? OwnBase<float>(p, my) : Unwritten(args, my);
#pragma unroll 1
  for (int i = my.lane; i < (my.count > 0 ? token.key_dim : 0); i += kColumnLanes) {
    float element = columns[i] * decay;
#pragma unroll 4
    for (int e = 0; e < kLogCapacity; ++e) {
      const float entry_weight = sh.weight[token.buffer + e];
      const float entry_u = sh.u[e * kDeltaRuleGroups + my.group];
      element = fmaf(entry_weight * KeyRow(p, my, first_row, log_length, token.since + e)[i], entry_u, element);
    }
    if constexpr (kRounds<Base>) {
      element = RoundToBf16(element);
      if (args.row_mask == kLogCapacity - 1) OwnBase<uint16_t>(p, my)[i] = ToBf16(element);
    }
    folded[i] = element;
  }
  SyncThreads();  // other lanes read what this one wrote
  return folded;
}

template <int kWave, int kElements, bool kExact, typename Base>
__global__ __launch_bounds__(kDeltaRuleThreads,
                             (kElements > 32 ? 1 : 2)) void DeltaRuleDecodeWideKernel(DecodeArgs args) {
  BeginEarly();
  constexpr bool kInMemory = !kExact;
  DecodeShared<1>& sh = SharedMemory<DecodeShared<1>>();
  const DeltaRuleArgs& p = args.rule;
  const DecodeCall call = CallOf(args);
  if (call.tokens == 0) return;
  if (call.slot_index < 0) {
    ZeroOutput(p, call.task, kDeltaRuleGroups, call.first, call.first + call.tokens);
    return;
  }
  const DecodeLane my = LaneOf<1>(p, call);
  float s[1][kElements];
  const Base* base = reinterpret_cast<const Base*>(p.pool + call.base_slot * p.at.slot_floats + p.at.base);
  const float* columns = nullptr;  // in memory
  if constexpr (!kInMemory) {
    LoadState<kElements, 1, true>(base + my.column_offset, my.count, my.lane, p.key_dim, s);
  } else if constexpr (std::is_same_v<Base, float>) {
    columns = base + my.column_offset;
  } else {
    columns = WidenInMemory(args, my, p.key_dim, base + my.column_offset);
  }
  float u[1];  // of log entry `lane`
  LoadLogU<1, kExact>(my, call.log_length, u);
  float g = LoadLogG<kWave>(p, my, call.log_length);
  if constexpr (kInMemory) {
    if (my.thread == 0) sh.first[0] = static_cast<int32_t>(call.first);
    SyncThreads();
  }
  // From LDS: what is counted from it lies in vector registers then, for the scalar ones would not hold it all.
  const int32_t shared_first = kInMemory ? sh.first[0] : 0;
  const int64_t first_row = kInMemory ? shared_first : call.first;

  for (int t = 0; t < call.tokens; ++t) {
    const int64_t row = first_row + t;
    // A row is never negative, but the compiler does not know, and so does not keep the lanes' masks from token to
    // token.
    const DecodeToken token = TokenOf<1>(call.log_length, row, t, p.key_dim, row >= 0 ? my.lane : 0);
    const float* k_row = TokenKey(p, my.task, row);
    const float* q_row = TokenQuery(p, my.task, row);
    const float* entry_row = KeyRow(p, my, first_row, call.log_length, token.since + min(my.group, token.entry));
    constexpr int kRows = kInMemory ? 2 : 1;  // the entry's key, and the column
    double entry_dot_k;
    float part_k[kRows];
    float part_q[kRows];
    if constexpr (kInMemory) {
      // A group past the last column finds something to read, and writes nothing.
      StreamedDots<false, 2>({entry_row, my.count > 0 ? columns : entry_row}, k_row, q_row, my.lane, token.key_dim,
                             {0.0f, -0.0f}, entry_dot_k, part_k, part_q);
    } else {
      StreamedDots<true, 1>({entry_row}, k_row, q_row, my.lane, token.key_dim, {0.0f}, entry_dot_k, part_k, part_q);
    }
    ShareEntryDots<kWave>(my, token, entry_dot_k, part_q[0], sh);
    const float v = TokenValue<kExact>(p, my, token);
    const float beta = p.beta[row * p.value_heads + my.task.head];
    FindWeights<kWave>(p, my, token, sh, g);
    SyncThreads();

    float k[kElements];
    float q[kElements];
    if constexpr (!kInMemory) {
      LoadFragment<kElements, true>(k_row, my.lane, token.key_dim, k);
      LoadFragment<kElements, true>(q_row, my.lane, token.key_dim, q);
    }
    const auto state_dots = [&](int, float& state_k, float& state_q) {
      if constexpr (kInMemory) {
        state_k = part_k[1];
        state_q = part_q[1];
      } else {
        state_k = Dot(s[0], k);
        state_q = Dot(s[0], q);
      }
    };
    const float now = ReadToken<kWave, 1>(args, my, token, v, beta, u, state_dots, SharedLog(my, token, sh));
    KeepU<1>(my, token, now, sh, u);
    AppendRow(args, my, kDeltaRuleGroups - 1, token, g, [&](float* log_k) {
      if constexpr (kInMemory) {
#pragma unroll 1
        for (int i = my.lane; i < token.key_dim; i += kColumnLanes) log_k[i] = k_row[i];
      } else {
        StoreFragment<kElements, true>(log_k, my.lane, token.key_dim, k);
      }
    });
    if (token.entry == kLogCapacity - 1) {
      EmptyLog<1>(my, sh, u, g);
      if constexpr (kInMemory) {
        columns = FoldInMemory<Base>(args, my, token, first_row, call.log_length, columns, sh);
      } else {
        FoldInRegisters<kElements, 1, true, Base>(args, my, token, first_row, call.log_length, sh, s);
      }
    }
  }
}

template <int kWave, int kElements>
absl::Status LaunchWide(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                        const Stream& stream) {
  const auto launch = [&](auto kernel, bool elsewhere) {
    const DecodeArgs args = MakeDecodeArgs(params, batch, kDeltaRuleGroups, elsewhere ? workspace : nullptr);
    return Launch("delta_rule_decode", kernel, DecodeGrid(args, batch), kDeltaRuleThreads, stream, args);
  };
  if (params.rule.pool.layout.base_dtype() == DType::kBF16) {
    return launch(DeltaRuleDecodeWideKernel<kWave, 32, false, uint16_t>, /*elsewhere=*/true);
  }
  if (ExactRule(params.rule, kElements, kDeltaRuleGroups)) {
    return launch(DeltaRuleDecodeWideKernel<kWave, kElements, true, float>, /*elsewhere=*/false);
  }
  return launch(DeltaRuleDecodeWideKernel<kWave, 32, false, float>, params.draft);
}

}  // namespace

absl::Status DeltaRuleDecodeWideGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                    const Stream& stream) {
  return WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return params.rule.pool.layout.dims().key_dim > 32 * kColumnLanes
               ? LaunchWide<wave(), 64>(params, batch, workspace, stream)
               : LaunchWide<wave(), 32>(params, batch, workspace, stream);
  });
}

}  // namespace gdn::gpu
