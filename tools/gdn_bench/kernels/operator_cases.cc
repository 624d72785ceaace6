// The delta rule alone: decode (deferred, and in place through the scan of one token) and prefill (scan, chunked).
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status_macros.h"
#include "tools/gdn_bench/kernels/kernel_case.h"

namespace gdn::bench {
namespace {

constexpr int32_t kCpuOperatorBatches[] = {1, 8, 32, 64, 128};
constexpr int32_t kGpuOperatorBatches[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};
constexpr int32_t kHotDecodeBatches[] = {1, 8};
constexpr int32_t kCpuPrefillLengths[] = {64, 512, 1024, 4096};
constexpr int32_t kGpuPrefillLengths[] = {64, 128, 512, 1024, 2048, 4096, 32768};
constexpr int32_t kManySequences = 8;
constexpr int32_t kManySequencesTokens = 4096;
constexpr int32_t kOtherDecodeBatch = 32;
constexpr int32_t kOtherPrefillTokens = 1024;
constexpr int32_t kSegmentTokens = 4096;  // a call of a long prefill
constexpr int32_t kLongTokens[] = {4096, 262144};
constexpr int32_t kPositions[] = {1, 1000000};  // tokens of a session so far
constexpr int32_t kDecodeInputRows = 1024;      // steps take different rows, so that no state settles on one key
constexpr float kLargestLogDecay = -0.001f;
constexpr float kSmallestGate = -0.1f;

// Dimensions beside Qwen3-Next's, as a case's name has them.
struct OtherDims {
  const char* name;
  LayerDims dims;
};
const OtherDims kOtherDims[] = {
    {"HV=4/", {.key_heads = 2, .value_heads = 4, .key_dim = 128, .value_dim = 128}},     // an eighth of the heads
    {"HV=48/", {.key_heads = 16, .value_heads = 48, .key_dim = 128, .value_dim = 128}},  // Qwen3.5's largest
    {"K=96,V=192/", {.key_heads = 16, .value_heads = 32, .key_dim = 96, .value_dim = 192}},
};
// A decay a head, and a decay a key channel (KDA) at the same dimensions, those of Kimi Linear.
const OtherDims kDecayDims[] = {
    {"H=32/", {.key_heads = 32, .value_heads = 32, .key_dim = 128, .value_dim = 128}},
    {"H=32,kda/",
     {.key_heads = 32, .value_heads = 32, .key_dim = 128, .value_dim = 128, .decay = DecayKind::kPerChannel}},
};
constexpr int32_t kDecayDecodeBatches[] = {1, 32};
constexpr int32_t kDecayPrefillLengths[] = {512, 4096};

struct OperatorInputs {
  std::shared_ptr<DeviceBuffer> q, k, v, g, beta, output;
  int32_t rows = 0;

  static absl::StatusOr<OperatorInputs> Make(Backend& backend, const LayerDims& dims, int32_t rows) {
    OperatorInputs in;
    in.rows = rows;
    const int64_t tokens = rows;
    // Uniform numbers in [-r, r] have variance r^2 / 3; this makes keys of norm one, and queries already scaled by
    // K^-0.5.
    const float key_range = std::sqrt(3.0f / static_cast<float>(dims.key_dim));
    const float query_range = key_range / std::sqrt(static_cast<float>(dims.key_dim));
    GDN_ASSIGN_OR_RETURN(in.q, RandomBuffer(backend, tokens * dims.key_features(), -query_range, query_range));
    GDN_ASSIGN_OR_RETURN(in.k, RandomBuffer(backend, tokens * dims.key_features(), -key_range, key_range));
    GDN_ASSIGN_OR_RETURN(in.v, RandomBuffer(backend, tokens * dims.value_features(), -1.0f, 1.0f));
    GDN_ASSIGN_OR_RETURN(in.g, RandomBuffer(backend, tokens * dims.decay_features(), kSmallestGate, kLargestLogDecay));
    GDN_ASSIGN_OR_RETURN(in.beta, RandomBuffer(backend, tokens * dims.value_heads, 0.1f, 0.9f));
    GDN_ASSIGN_OR_RETURN(in.output, RandomBuffer(backend, tokens * dims.value_features(), 0.0f, 1.0f));
    return in;
  }

  DeltaRuleParams Params(const StatePoolView& pool, const PackedBatch& batch, int64_t first_row) const {
    const LayerDims& dims = pool.layout.dims();
    return {.pool = pool,
            .batch = batch,
            .q = q->floats() + first_row * dims.key_features(),
            .k = k->floats() + first_row * dims.key_features(),
            .v = v->floats() + first_row * dims.value_features(),
            .g = g->floats() + first_row * dims.decay_features(),
            .beta = beta->floats() + first_row * dims.value_heads,
            .q_stride = dims.key_features(),
            .k_stride = dims.key_features(),
            .v_stride = dims.value_features(),
            .output = output->floats() + first_row * dims.value_features(),
            .max_beta = 1.0f};
  }
};

enum class Form { kDeferredDecode, kScan, kChunk };

// `groups` batches of sessions take turns. Log lengths are spread evenly over 0 .. L - 1, as in a service whose
// sessions began at different times: each run() then holds its share of folds.
struct Fixture {
  Form form = Form::kScan;
  int32_t groups = 0;
  int32_t batch = 0;
  RandomStatePool pool;
  OperatorInputs inputs;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> slots;        // [groups, batch]
  std::vector<int32_t> log_lengths;  // [groups, batch]
  int64_t next_row = 0;

  absl::Status Run(Backend& backend) {
    for (int32_t group = 0; group < groups; ++group) {
      const PackedBatch packed{
          .sequences = batch, .cu_seqlens = cu_seqlens.data(), .slots = slots.data() + int64_t{group} * batch};
      const DeltaRuleParams rule = inputs.Params(pool.view, packed, next_row);
      next_row = (next_row + batch + 1) % (inputs.rows - packed.tokens() + 1);
      GDN_RETURN_IF_ERROR(
          form == Form::kScan ? backend.DeltaRuleScan(rule)
          : form == Form::kChunk
              ? backend.DeltaRuleChunk(rule)
              : backend.DeltaRuleDecode({.rule = rule, .log_lengths = log_lengths.data() + int64_t{group} * batch}));
    }
    return absl::OkStatus();
  }
};

// A step gives each session `tokens` of the inputs' rows. Where they are hot, all groups are of the same sessions.
absl::StatusOr<std::shared_ptr<Fixture>> MakeFixture(const CaseSetting& setting, const LayerDims& dims, Form form,
                                                     int32_t groups, int32_t batch, int32_t tokens, int32_t rows,
                                                     bool hot) {
  Backend& backend = setting.backend;
  auto fixture = std::make_shared<Fixture>();
  fixture->form = form;
  fixture->groups = groups;
  fixture->batch = batch;
  GDN_ASSIGN_OR_RETURN(fixture->pool, MakeStatePool(backend, dims, hot ? batch : groups * batch, setting.state_dtype));
  GDN_ASSIGN_OR_RETURN(fixture->inputs, OperatorInputs::Make(backend, dims, rows));
  for (int32_t i = 0; i <= batch; ++i) fixture->cu_seqlens.push_back(i * tokens);
  for (int32_t group = 0; group < groups; ++group) {
    for (int32_t i = 0; i < batch; ++i) {
      fixture->slots.push_back(hot ? i : group * batch + i);
      fixture->log_lengths.push_back((hot ? group + i : group * batch + i) % kLogCapacity);
    }
  }
  return fixture;
}

// Cold, each step finds its states in memory, for as many batches take turns as do not fit into a cache; hot, it finds
// them where the step before left them.
absl::StatusOr<PreparedCase> PrepareDecode(const CaseSetting& setting, const LayerDims& dims, Form form, int32_t batch,
                                           bool hot) {
  const int64_t batch_bytes = batch * dims.state_elements() * static_cast<int64_t>(DTypeSize(setting.state_dtype));
  int32_t groups = kLogCapacity;
  if (!hot) {  // whole turns of L slots, so that folds spread evenly
    groups = static_cast<int32_t>((setting.rotation_bytes + batch_bytes - 1) / batch_bytes);
    while (int64_t{groups} * batch % kLogCapacity != 0) ++groups;
  }
  GDN_ASSIGN_OR_RETURN(auto fixture,
                       MakeFixture(setting, dims, form, groups, batch, /*tokens=*/1, kDecodeInputRows, hot));
  return PreparedCase{.cost = form == Form::kDeferredDecode ? DecodeDeferredCost(dims, batch, setting.state_dtype)
                                                            : DecodeInPlaceCost(dims, batch, setting.state_dtype),
                      .steps = groups,
                      .working_set_bytes = static_cast<double>((hot ? 1 : groups) * batch_bytes),
                      .run = [fixture, &backend = setting.backend] { return fixture->Run(backend); }};
}

absl::StatusOr<PreparedCase> PreparePrefill(const CaseSetting& setting, const LayerDims& dims, Form form,
                                            int32_t sequences, int32_t tokens) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeFixture(setting, dims, form, /*groups=*/1, sequences, tokens,
                                                 /*rows=*/sequences * tokens, /*hot=*/false));
  const Cost cost = PrefillCost(dims, sequences, tokens, setting.state_dtype);
  return PreparedCase{.cost = cost,
                      .working_set_bytes = cost.bytes_read + cost.bytes_written,
                      .run = [fixture, &backend = setting.backend] { return fixture->Run(backend); }};
}

// A session from its beginning, by calls as the server makes them.
absl::Status RunLong(Backend& backend, Fixture& fixture, int32_t tokens) {
  GDN_RETURN_IF_ERROR(backend.ZeroSlot(fixture.pool.view, fixture.slots[0]));
  for (int32_t done = 0; done < tokens; done += kSegmentTokens) {
    fixture.cu_seqlens[1] = std::min(kSegmentTokens, tokens - done);
    GDN_RETURN_IF_ERROR(fixture.Run(backend));
  }
  return absl::OkStatus();
}

absl::StatusOr<PreparedCase> PrepareLongPrefill(const CaseSetting& setting, const LayerDims& dims, int32_t tokens) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeFixture(setting, dims, Form::kChunk, /*groups=*/1, /*batch=*/1, kSegmentTokens,
                                                 /*rows=*/kSegmentTokens, /*hot=*/false));
  const Cost cost = PrefillCost(dims, /*sequences=*/1, tokens, setting.state_dtype);
  return PreparedCase{.cost = cost,
                      .working_set_bytes = cost.bytes_read + cost.bytes_written,
                      .run = [=, &backend = setting.backend] { return RunLong(backend, *fixture, tokens); }};
}

// Hot decodes of a session that has come so far.
absl::StatusOr<PreparedCase> PrepareDecodeAt(const CaseSetting& setting, const LayerDims& dims, int32_t position) {
  GDN_ASSIGN_OR_RETURN(auto fixture, MakeFixture(setting, dims, Form::kChunk, /*groups=*/1, /*batch=*/1, kSegmentTokens,
                                                 /*rows=*/kSegmentTokens, /*hot=*/true));
  GDN_RETURN_IF_ERROR(RunLong(setting.backend, *fixture, position));
  fixture->form = Form::kDeferredDecode;
  fixture->groups = kLogCapacity;
  fixture->slots.assign(kLogCapacity, fixture->slots[0]);
  fixture->cu_seqlens[1] = 1;
  fixture->log_lengths.clear();
  for (int32_t group = 0; group < kLogCapacity; ++group) fixture->log_lengths.push_back(group);
  return PreparedCase{.cost = DecodeDeferredCost(dims, /*batch=*/1, setting.state_dtype),
                      .steps = kLogCapacity,
                      .working_set_bytes = static_cast<double>(dims.state_elements() * DTypeSize(setting.state_dtype)),
                      .run = [fixture, &backend = setting.backend] { return fixture->Run(backend); }};
}

KernelCase DecodeCase(const std::string& name, const LayerDims& dims, Form form, int32_t batch, bool hot) {
  return {absl::StrCat(name, "B=", batch),
          [=](const CaseSetting& setting) { return PrepareDecode(setting, dims, form, batch, hot); }};
}

KernelCase PrefillCase(const std::string& name, const LayerDims& dims, Form form, int32_t sequences, int32_t tokens) {
  const std::string batch = sequences == 1 ? "" : absl::StrCat("B=", sequences, "/");
  return {absl::StrCat(name, batch, "T=", tokens),
          [=](const CaseSetting& setting) { return PreparePrefill(setting, dims, form, sequences, tokens); }};
}

// The two kinds of decay side by side, case by case.
void AddDecayCases(std::vector<KernelCase>& cases) {
  const auto add = [&cases](const auto& make) {
    for (const OtherDims& kind : kDecayDims) cases.push_back(make(std::string(kind.name), kind.dims));
  };
  for (const bool hot : {false, true}) {
    for (const int32_t batch : kDecayDecodeBatches) {
      if (hot && batch > 1) continue;
      add([&](const std::string& name, const LayerDims& dims) {
        return DecodeCase((hot ? "decode_hot/" : "decode_deferred/") + name, dims, Form::kDeferredDecode, batch, hot);
      });
    }
  }
  add([](const std::string& name, const LayerDims& dims) {
    return PrefillCase("prefill_scan/" + name, dims, Form::kScan, /*sequences=*/1, /*tokens=*/64);
  });
  for (const int32_t tokens : kDecayPrefillLengths) {
    add([&](const std::string& name, const LayerDims& dims) {
      return PrefillCase("prefill_chunk/" + name, dims, Form::kChunk, /*sequences=*/1, tokens);
    });
  }
}

}  // namespace

std::vector<KernelCase> OperatorCases(CaseList list) {
  const bool gpu = list == CaseList::kGpu;
  const auto batches = gpu ? absl::MakeConstSpan(kGpuOperatorBatches) : absl::MakeConstSpan(kCpuOperatorBatches);
  const auto lengths = gpu ? absl::MakeConstSpan(kGpuPrefillLengths) : absl::MakeConstSpan(kCpuPrefillLengths);
  const LayerDims dims = BenchOperatorDims();
  std::vector<KernelCase> cases;
  for (const auto& [form, name] :
       {std::pair(Form::kDeferredDecode, "decode_deferred/"), std::pair(Form::kScan, "decode_in_place/")}) {
    for (const int32_t batch : batches) cases.push_back(DecodeCase(name, dims, form, batch, /*hot=*/false));
  }
  for (const int32_t batch : kHotDecodeBatches) {
    cases.push_back(DecodeCase("decode_hot/", dims, Form::kDeferredDecode, batch, /*hot=*/true));
  }
  for (const auto& [form, name] :
       {std::pair(Form::kScan, "prefill_scan/"), std::pair(Form::kChunk, "prefill_chunk/")}) {
    for (const int32_t tokens : lengths) cases.push_back(PrefillCase(name, dims, form, /*sequences=*/1, tokens));
  }
  if (gpu) {
    cases.push_back(PrefillCase("prefill_chunk/", dims, Form::kChunk, kManySequences, kManySequencesTokens));
  }
  for (const int32_t tokens : kLongTokens) {
    cases.push_back({absl::StrCat("prefill_long/T=", tokens),
                     [=](const CaseSetting& setting) { return PrepareLongPrefill(setting, dims, tokens); }});
  }
  for (const int32_t position : kPositions) {
    cases.push_back({absl::StrCat("decode_at/position=", position),
                     [=](const CaseSetting& setting) { return PrepareDecodeAt(setting, dims, position); }});
  }
  for (const OtherDims& other : kOtherDims) {
    cases.push_back(DecodeCase(absl::StrCat("decode_deferred/", other.name), other.dims, Form::kDeferredDecode,
                               kOtherDecodeBatch, /*hot=*/false));
    cases.push_back(PrefillCase(absl::StrCat("prefill_chunk/", other.name), other.dims, Form::kChunk,
                                /*sequences=*/1, kOtherPrefillTokens));
  }
  AddDecayCases(cases);
  return cases;
}

}  // namespace gdn::bench
