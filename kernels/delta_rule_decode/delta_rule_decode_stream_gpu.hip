// The deferred delta rule on the GPU for a token a sequence; delta_rule_decode_gpu.hip has the formula, and bits are
// those of its kernel.
//
// Threads: a wave has some of a head's value columns, and works alone: no LDS, no barrier. 16 lanes hold kColumns
// columns at a time (a wave two or four times as many: a set), and the next set is on its way while a wave computes
// with the one it has. What is the same for a whole head it reads from a record, with where the state is.
// A fold takes several times as long as the step that it ends, so a wave has few sets: those of a head that folds are
// many waves' work.
// Across waves: rows of log_u are written by the wave that owns their columns; k and g by the head's first, to rows
// that none reads.
// Where waves have 64 lanes only rows come here that do not fill them: whole ones the other kernel reads at memory's
// limit (docs/evidence/mi50-model.md), without records.
// Where decays are by channel the record has the decayed k and q too, and before a fold the weighted keys: a wave does
// not know that there are decays.
// Resources: 99 VGPRs for K = 128; no LDS, no spills (gfx906). Bound by memory.

#include "base/status_macros.h"
#include "kernels/delta_rule_decode/column_set_gpu-inl.h"
#include "kernels/delta_rule_decode/decode_record_gpu-inl.h"

namespace gdn {
namespace gpu {
namespace {

constexpr int kThreads = 128;              // few, so that a processor's waves are replaced one by one
constexpr int kMostElements = 16;          // of a column in a lane's registers
constexpr int64_t kMostSequences = 65535;  // blockIdx.y

// Sets of a wave, one after another: with more of them its way to the first is worth more. A wave of 64 lanes has as
// many columns in one; a second would cost spills.
template <int kWave, typename Base>
inline constexpr int32_t kMostSets = kWave == 64     ? 1
                                     : kRounds<Base> ? 8
                                                     : 4;
// So that there are waves enough: by measurement, for bases of either size (docs/evidence/kernel-notes.md).
template <typename Base>
inline constexpr int64_t kWavesOfProcessor = kRounds<Base> ? 112 : 192;

struct StreamArgs {
  DecodeArgs decode;
  const float* records;
  int32_t sets;       // of a head's columns
  int32_t wave_sets;  // of them, a wave's
  int32_t parts;      // waves a head
};

// Blocks of a multiprocessor; waves of a SIMD where a wave has 64 lanes.
template <int kWave, bool kOneSet>
inline constexpr int kLeast = kWave == 64 ? 2
                              : kOneSet   ? 5
                                          : 4;

// kByChannel: records are ChannelRecords, and rows whole.
template <int kWave, int kElements, bool kWhole, bool kOneSet, typename Base, bool kByChannel>
__global__ __launch_bounds__(kThreads, (kLeast<kWave, kOneSet>)) void DeltaRuleDecodeStreamKernel(StreamArgs args) {
  BeginEarly();
  constexpr int kColumns = kSetColumnsOfGroup<kElements>;
  constexpr int kSetColumns = kWave / kColumnLanes * kColumns;
  using Set = ColumnSet<kElements, kColumns, Base>;
  const DeltaRuleArgs& p = args.decode.rule;
  const int lane_of_wave = LaneId<kWave>();
  const int lane = lane_of_wave % kColumnLanes;
  const int wave = static_cast<int>(blockIdx.x) * (kThreads / kWave) + static_cast<int>(threadIdx.x) / kWave;
  const int head = wave / args.parts;
  if (head >= p.value_heads) return;
  const int part = wave - head * args.parts;
  const int64_t index = int64_t{blockIdx.y} * p.value_heads + head;
  const int64_t record_floats = kByChannel ? ChannelRecord::Floats(p.key_dim) : kDecodeRecordFloats;
  const float* record_row = args.records + index * record_floats;
  const DecodeRecord record = ReadRecord(record_row, lane);
  const RecordPlace& place = record.place;
  if (place.row < 0) return;
  const int sets = kOneSet ? 1 : min(args.wave_sets, args.sets - part * args.wave_sets);
  const int first_column = part * args.wave_sets * kSetColumns;
  const int64_t row_of_head = int64_t{place.row} * p.value_heads + head;
  if (place.slot < 0) {
    for (int i = lane_of_wave; i < sets * kSetColumns; i += kWave) {
      p.output[row_of_head * p.value_dim + first_column + i] = 0.0f;
    }
    return;
  }
  const DecodeToken token = TokenOf<kColumns>(place.entry, place.row, 0, p.key_dim, lane);
  const bool logged = lane < token.entry;
  const bool owns = lane % kSharingLanes<kColumns> == 0;
  const int column = first_column + lane_of_wave / kColumnLanes * kColumns;
  float* slot = p.pool + place.slot * p.at.slot_floats;
  const int64_t value = int64_t{head} * p.value_dim + column;
  const int64_t values = int64_t{p.value_heads} * p.value_dim;
  float* log_u = slot + p.at.log_u + value;
  SetPlace<Base> at;
  at.base = reinterpret_cast<const Base*>(p.pool + place.base_slot * p.at.slot_floats + p.at.base) + value * p.key_dim;
  at.u = log_u + lane * values;
  at.v = p.v + place.row * p.v_stride + value + token.own;
  at.target = (token.reads ? p.output + place.row * values + value : log_u + token.entry * values) + token.own;
  const auto load = [&](int sets_on, Set& set) {
    LoadSet<kElements, kColumns, kWhole>(at, sets_on * kSetColumns, lane, p.key_dim, logged, set);
  };
  Set one;
  load(0, one);
  const int key_head = head / p.group;
  const int64_t key = int64_t{key_head} * p.key_dim;
  float k[kElements];
  float q[kElements];
  const float* k_row = kByChannel ? record_row + ChannelRecord::kK : p.k + place.row * p.k_stride + key;
  const float* q_row = kByChannel ? record_row + ChannelRecord::Q(p.key_dim) : p.q + place.row * p.q_stride + key;
  LoadVectors<kElements, kWhole>(k_row, lane, p.key_dim, k);
  LoadVectors<kElements, kWhole>(q_row, lane, p.key_dim, q);

  const auto read = [&](int sets_on, const Set& set) {
    const auto state_dots = [&](int c, float& state_k, float& state_q) {
      float s[kElements];
      WidenColumn(set.s[c], s);
      state_k = Dot(s, k);
      state_q = Dot(s, q);
    };
    float now;
    const float result = ReadColumns<kWave, kColumns>(token, set.v, record.beta, set.u, state_dots, record.log, now);
    if (owns) at.target[sets_on * kSetColumns] = result;
    return now;
  };
  const auto move = [&](int sets_on) {
    const int columns = sets_on * kSetColumns;
    at.base += columns * ColumnStride<kElements, kWhole>(p.key_dim);
    at.u += columns;
    at.v += columns;
    at.target += columns;
  };
  if (token.entry == kLogCapacity - 1 && args.decode.row_mask == kLogCapacity - 1) {
    Base* columns = reinterpret_cast<Base*>(slot + p.at.base) + value * p.key_dim;
#pragma unroll 1
    for (int i = 0; i < sets; ++i) {
      const float now = read(0, one);
      const auto fold = [&](ColumnSet<kElements, kColumns, float>& set) {
        if constexpr (kByChannel) {
          FoldChannelSet<kWave, kElements, kColumns>(record_row, lane, now, p.key_dim, columns, set);
        } else {
          FoldSet<kWave, kElements, kColumns, kWhole>(p, record.log, lane, now, slot + p.at.log_k + key, k, columns,
                                                      set);
        }
      };
      if constexpr (kRounds<Base>) {
        ColumnSet<kElements, kColumns, float> wide;
#pragma unroll
        for (int c = 0; c < kColumns; ++c) {
          WidenColumn(one.s[c], wide.s[c].x);
          wide.u[c] = one.u[c];
        }
        fold(wide);
      } else {
        fold(one);
      }
      columns += kSetColumns * ColumnStride<kElements, kWhole>(p.key_dim);
      move(1);
      if (i + 1 < sets) load(0, one);
    }
  } else if constexpr (kOneSet) {
    read(0, one);
  } else {
    Set other;
#pragma unroll 1
    for (int i = 0; i < sets; i += 2) {
      if (i + 1 < sets) load(1, other);
      read(0, one);
      if (i + 2 < sets) load(2, one);
      if (i + 1 < sets) read(1, other);
      move(2);
    }
  }
  if (kByChannel || part != 0 || lane_of_wave >= kColumnLanes)
    return;  // whoever made the record has appended the token
  if (lane == token.entry) slot[p.at.log_g + int64_t{token.entry} * p.value_heads + head] = record.g;
  if (head != key_head * p.group) return;
  StoreVectors<kElements, kWhole>(slot + p.at.log_k + int64_t{token.entry} * p.key_heads * p.key_dim + key, lane,
                                  p.key_dim, k);
}

struct RecordArgs {
  DeltaRuleArgs rule;
  DeviceBatch batch;
  float* records;
};
struct RecordShared {
  LdsArray<float, kEntryDotFloats> dots;
};

// A block a sequence and key head; a group of lanes has an entry, then a value head.
template <int kWave, int kElements, bool kWhole>
__global__ __launch_bounds__(kDeltaRuleThreads) void DecodeRecordKernel(RecordArgs args) {
  BeginEarly();
  RecordShared& sh = SharedMemory<RecordShared>();
  const DeltaRuleArgs& p = args.rule;
  const int lane = static_cast<int>(threadIdx.x) % kColumnLanes;
  const int group = static_cast<int>(threadIdx.x) / kColumnLanes;
  const int key_head = static_cast<int>(blockIdx.x);
  const int32_t sequence = static_cast<int32_t>(blockIdx.y);
  const RecordPlace place = PlaceOf(args.batch, sequence);
  float* records =
      args.records + (int64_t{sequence} * p.value_heads + int64_t{key_head} * p.group) * kDecodeRecordFloats;
  for (int i = static_cast<int>(threadIdx.x); i < p.group; i += kDeltaRuleThreads) {
    WritePlace(place, records + i * kDecodeRecordFloats);
  }
  if (place.row < 0 || place.slot < 0) return;
  const float* slot = p.pool + place.slot * p.at.slot_floats;
  const int64_t key = int64_t{key_head} * p.key_dim;
  const float* token_k = p.k + place.row * p.k_stride + key;
  float k[kElements];
  float q[kElements];
  float entry_k[1][kElements];
  LoadVectors<kElements, kWhole>(token_k, lane, p.key_dim, k);
  LoadVectors<kElements, kWhole>(p.q + place.row * p.q_stride + key, lane, p.key_dim, q);
  const float* entry_row =
      group < place.entry ? slot + p.at.log_k + int64_t{group} * p.key_heads * p.key_dim + key : token_k;
  LoadVectors<kElements, kWhole>(entry_row, lane, p.key_dim, entry_k[0]);
  const EntryDots dots = DotsOfLane<kWave>(entry_k, k, q, lane);
  if (lane == 0) dots.Store(sh.dots, group, 2 * kLogCapacity + group);
  SyncThreads();
  for (int first = 0; first < p.group; first += kDeltaRuleGroups) {
    const bool mine = first + group < p.group;
    const int index = mine ? first + group : 0;
    const int head = key_head * p.group + index;
    const int64_t at = int64_t{place.row} * p.value_heads + head;
    float g = p.g[at];
    if (lane != place.entry) {
      g = lane < place.entry ? slot[p.at.log_g + int64_t{lane} * p.value_heads + head] : 0.0f;
    }
    const float factor = DecayFactor<kWave>(place.entry, lane, g);
    if (!mine) continue;
    WriteRecord(place.entry, lane, factor, p.g[at], p.beta[at], EntryDots::Load(sh.dots, lane, 2 * kLogCapacity + lane),
                sh.dots[kLogCapacity + place.entry], records + index * kDecodeRecordFloats);
  }
}

template <int kWave, int kElements, bool kWhole, bool kByChannel>
absl::Status LaunchStream(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, const float* records,
                          const Stream& stream) {
  constexpr int kSetColumns = SetColumns(kWave, kElements * kColumnLanes);
  const LayerDims& dims = params.rule.pool.layout.dims();
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  const int32_t sets = dims.value_dim / kSetColumns;
  return WithBaseElement(params.rule.pool.layout, [&](auto base) {
    using Base = decltype(base);
    int32_t wave_sets = kMostSets<kWave, Base>;
    while (wave_sets > 1 && heads * CeilDivide(sets, wave_sets) < stream.processors * kWavesOfProcessor<Base>) {
      wave_sets /= 2;
    }
    const StreamArgs args{.decode = MakeDecodeArgs(params, batch, kSetColumns, /*unwritten=*/nullptr),
                          .records = records,
                          .sets = sets,
                          .wave_sets = wave_sets,
                          .parts = static_cast<int32_t>(CeilDivide(sets, wave_sets))};
    const Grid grid{
        .x = CeilDivide(int64_t{dims.value_heads} * args.parts, kThreads / kWave), .y = batch.sequences, .early = true};
    const auto launch = [&](auto one_set) {
      return Launch("delta_rule_decode",
                    DeltaRuleDecodeStreamKernel<kWave, kElements, kWhole, decltype(one_set)::value, Base, kByChannel>,
                    grid, kThreads, stream, args);
    };
    if constexpr (kMostSets < kWave, Base >> 1) {
      if (wave_sets > 1) return launch(std::false_type());
    }
    return launch(std::true_type());
  });
}

// Whether delta_rule_decode_gpu.hip's kernel takes such rows without guards.
bool IsWhole(const LayerDims& dims) {
  const bool lanes_are_full = dims.key_dim == 64 || dims.key_dim == 128 || dims.key_dim == 256;
  return lanes_are_full && dims.value_dim % (2 * kDeltaRuleGroups) == 0;
}

// function(elements, whole) for rows of K. Waves of 64 lanes come with what is not whole, and have one instance for it.
template <int kWave, typename Function>
absl::Status WithVectors(int32_t key_dim, Function&& function) {
  return WithElements<kMostElements>(key_dim, [&](auto elements) {
    if constexpr (kWave == 32) {
      if (key_dim == kColumnLanes * elements()) return function(elements, std::true_type());
    }
    return function(elements, std::false_type());
  });
}

}  // namespace

absl::Status DeltaRuleDecodeStreamGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch, float* workspace,
                                      const Stream& stream) {
  if (params.records == nullptr) GDN_RETURN_IF_ERROR(DecodeRecordsGpu(params.rule, batch, workspace, stream));
  const float* records = params.records != nullptr ? params.records : workspace;
  return WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) {
    return WithVectors<wave()>(params.rule.pool.layout.dims().key_dim, [&](auto elements, auto whole) {
      return LaunchStream<wave(), elements(), whole(), false>(params, batch, records, stream);
    });
  });
}

bool StreamsChannels(const DeltaRuleDecodeParams& params, const Stream& stream) {
  const LayerDims& dims = params.rule.pool.layout.dims();
  const PackedBatch& batch = params.rule.batch;
  if (stream.wave_width != 32 || batch.sequences > kMostSequences || !IsWhole(dims) || !VectorRule(params.rule)) {
    return false;
  }
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.length(i) > 1) return false;
  }
  return int64_t{batch.sequences} * dims.value_heads >= int64_t{stream.processors} * 4 &&
         dims.value_dim % SetColumns(stream.wave_width, dims.key_dim) == 0;
}

absl::Status DeltaRuleChannelStreamGpu(const DeltaRuleDecodeParams& params, const DeviceBatch& batch,
                                       const float* records, const Stream& stream) {
  return WithWaveWidth(stream, "delta_rule_decode", [&](auto wave) -> absl::Status {
    if constexpr (wave() == 32) {
      return WithElements<kMostElements>(params.rule.pool.layout.dims().key_dim, [&](auto elements) {
        return LaunchStream<wave(), elements(), true, true>(params, batch, records, stream);
      });
    }
    return absl::InternalError("delta_rule_decode: records by channel are for waves of 32");
  });
}

}  // namespace gpu

int64_t DecodeRecordFloatsGpu(const StateLayout& layout, const PackedBatch& batch, const gpu::Stream& stream) {
  const LayerDims& dims = layout.dims();
  const bool can = batch.sequences <= gpu::kMostSequences && dims.key_dim % 4 == 0 &&
                   dims.key_dim <= gpu::kMostElements * gpu::kColumnLanes &&
                   dims.value_dim % gpu::SetColumns(stream.wave_width, dims.key_dim) == 0;
  if (!can || dims.decays_by_channel()) return 0;
  const int64_t heads = int64_t{batch.sequences} * dims.value_heads;
  // Of whole rows the other kernel is as quick for a few heads, and on gfx906 at memory's limit for many.
  if (gpu::IsWhole(dims) && (stream.wave_width == 64 || heads < stream.processors)) return 0;
  for (int32_t i = 0; i < batch.sequences; ++i) {
    if (batch.length(i) > 1) return 0;
  }
  return heads * kDecodeRecordFloats;
}

absl::Status DecodeRecordsGpu(const DeltaRuleParams& rule, const gpu::DeviceBatch& batch, float* records,
                              const gpu::Stream& stream) {
  const LayerDims& dims = rule.pool.layout.dims();
  const gpu::RecordArgs args{gpu::MakeDeltaRuleArgs(rule, batch, 1), batch, records};
  return gpu::WithWaveWidth(stream, "decode_records", [&](auto wave) {
    return gpu::WithVectors<wave()>(dims.key_dim, [&](auto elements, auto whole) {
      return gpu::Launch("decode_records", gpu::DecodeRecordKernel<wave(), elements(), whole()>,
                         {.x = dims.key_heads, .y = batch.sequences, .early = true}, gpu::kDeltaRuleThreads, stream,
                         args);
    });
  });
}

}  // namespace gdn
