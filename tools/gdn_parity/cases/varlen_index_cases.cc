// Rows of the index helpers of packed batches.

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/primitives/varlen_index/varlen_index.h"
#include "tools/gdn_parity/cases/operator_cases.h"
#include "tools/gdn_parity/operator_call.h"

namespace gdn::parity {
namespace {

using Indices = std::vector<int32_t>;

// One of the four helpers; `made` is its place among the parameters' outputs.
CaseResult RunIndex(const char* name, int32_t* VarlenIndexParams::*made, int64_t size, const OwnedBatch& batch,
                    Backend& backend) {
  constexpr int32_t kChunk = 64;
  const int32_t sequences = batch.view().sequences;
  return OperatorCall<VarlenIndexParams>("varlen_index", {{"f", name}, {"chunk", absl::StrCat(kChunk)}},
                                         {.sequences = sequences, .tokens = batch.tokens(), .chunk = kChunk})
      .In(&VarlenIndexParams::cu_seqlens, "cu_seqlens", {sequences + 1}, batch.cu_seqlens)
      .Out(made, "index", {size})
      .Run(backend, VarlenIndexReference, VarlenIndexGpu);
}

// All four at once.
CaseResult RunAll(const Indices& lengths, Backend& backend) {
  const OwnedBatch batch(lengths);
  const int32_t sequences = batch.view().sequences;
  return OperatorCall<VarlenIndexParams>("", {}, {.sequences = sequences, .tokens = batch.tokens(), .chunk = 4})
      .In(&VarlenIndexParams::cu_seqlens, "cu_seqlens", {sequences + 1}, batch.cu_seqlens)
      .Out(&VarlenIndexParams::lengths, "lengths", {sequences})
      .Out(&VarlenIndexParams::sequence_ids, "sequence_ids", {batch.tokens()})
      .Out(&VarlenIndexParams::position_ids, "position_ids", {batch.tokens()})
      .Out(&VarlenIndexParams::chunk_offsets, "chunk_offsets", {sequences + 1})
      .Run(backend, VarlenIndexReference, VarlenIndexGpu);
}

}  // namespace

void AddVarlenIndexCases(std::vector<ParityCase>& cases) {
  const Indices lengths{5, 0, 64, 1, 130, 0};
  const int64_t tokens = OwnedBatch(lengths).tokens();
  const int64_t sequences = static_cast<int64_t>(lengths.size());
  const auto add = [&](const char* name, const char* note, int32_t* VarlenIndexParams::*made, int64_t size) {
    cases.push_back(GpuCase(
        "parity", absl::StrCat("index_", name), absl::StrCat("T=", absl::StrJoin(lengths, ","), note), kExact,
        [=](Backend& backend, RandomTensor&) { return RunIndex(name, made, size, OwnedBatch(lengths), backend); }));
  };
  add("lengths", "", &VarlenIndexParams::lengths, sequences);
  add("position_ids", "", &VarlenIndexParams::position_ids, tokens);
  add("sequence_ids", "", &VarlenIndexParams::sequence_ids, tokens);
  add("chunk_offsets", " C=64", &VarlenIndexParams::chunk_offsets, sequences + 1);
  for (const Indices& some :
       {Indices{}, Indices{0}, Indices{5}, Indices{0, 3, 0, 0, 7, 1, 0}, Indices{64, 65, 1, 128}}) {
    cases.push_back(GpuCase("shapes", "varlen_index", absl::StrCat("T=", absl::StrJoin(some, ",")), kExact,
                            [some](Backend& backend, RandomTensor&) { return RunAll(some, backend); }));
  }
  // More sequences than are scanned at a time.
  cases.push_back(
      GpuCase("shapes", "varlen_index", "600 sequences of 0 .. 5", kExact, [](Backend& backend, RandomTensor& random) {
        const std::vector<float> drawn = random.Uniform(600, 0.0f, 6.0f);
        return RunAll(Indices(drawn.begin(), drawn.end()), backend);
      }));
}

}  // namespace gdn::parity
