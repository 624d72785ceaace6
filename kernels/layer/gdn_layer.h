// A Gated DeltaNet layer: the operators in order, for each kind of input, as prefill and as decode.
//
//   hidden_states -> projection -> split -> conv1d + SiLU -> l2norm, gates -> delta rule -> gated RMSNorm -> projection
//   projected     enters at conv1d and leaves after the gated RMSNorm
//   delta_rule    is the delta rule alone (with q scaled, and q, k normalised on request)
// Thread safety: a GdnLayerRunner is for one thread. Ownership: it owns its workspace, which grows to the largest call
// seen.
// Bits: a sequence's results never depend on the other sequences of the call.
//
//   GdnLayerRunner runner(backend);
//   GDN_RETURN_IF_ERROR(runner.Decode(step, log_lengths));
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/backend.h"
#include "kernels/layer/layer_weights.h"

namespace gdn {

// One step of one layer for a packed batch. Pointers are backend memory, but for the index arrays (host).
struct LayerStep {
  const LayerWeights* weights = nullptr;  // nullptr only for kDeltaRule
  StatePoolView pool = {};
  PackedBatch batch = {};
  const int64_t* token_counts = nullptr;  // [sequences] host: tokens before this step
  InputKind kind = InputKind::kHiddenStates;
  // Prefill only, [sequences] host: tokens of the whole call that a sequence's rows are a segment of; null: the rows
  // are the call. Which kernels a segment takes follows from this, and so do its bits.
  const int32_t* call_tokens = nullptr;
  // Decode only; see DeltaRuleDecodeParams.
  const int32_t* base_slots = nullptr;  // [sequences] host
  bool draft = false;
  // Drafts only, [tokens] host: the token of its sequence that each follows, or -1 (base/draft_tree.h); null: chains.
  const int32_t* draft_parents = nullptr;

  // Of any dtype; widened where they are read.
  InputTensor hidden_states = {};  // [tokens, D]
  InputTensor mixed_qkv = {};      // [tokens, C]
  InputTensor z = {};              // [tokens, HV * V]
  InputTensor b = {};              // [tokens, HV]
  InputTensor a = {};              // [tokens, HV], or [tokens, HV * K] where dims.decay is kPerChannel, as g
  InputTensor q = {};              // [tokens, H * K]
  InputTensor k = {};              // [tokens, H * K]
  InputTensor v = {};              // [tokens, HV * V]
  InputTensor g = {};              // [tokens, HV], or [tokens, HV * K]
  InputTensor beta = {};           // [tokens, HV]
  float scale = 0.0f;              // kDeltaRule: multiplies q; the other kinds use K^-0.5
  bool use_qk_l2norm = false;      // kDeltaRule only; the other kinds always normalise
  float max_beta = 2.0f;           // kDeltaRule: DeltaRuleParams::max_beta; the other kinds have their model's

  OutputTensor output = {};  // [tokens, D], or [tokens, HV * V] for projected and delta_rule
};

// A kind's input tensors in the API's order, with the elements that each has for a token.
struct LayerField {
  InputTensor LayerStep::*tensor;
  int64_t features;
};
inline constexpr int kMaxLayerFields = 5;
absl::Span<const LayerField> LayerFields(InputKind kind, const LayerDims& dims,
                                         std::array<LayerField, kMaxLayerFields>& storage);
int64_t LayerOutputFeatures(InputKind kind, const LayerDims& dims);

// INVALID_ARGUMENT naming what is missing, out of range or at odds with the pool. The runner calls these before it
// touches anything.
absl::Status ValidateLayerStep(const LayerStep& step);
absl::Status ValidatePrefillStep(const LayerStep& step);
absl::Status ValidateDecodeStep(const LayerStep& step, const int32_t* log_lengths);

// Segments of a prefill call end at multiples of this from its first token: a multiple of both chunk lengths, so that
// no segment cuts a chunk.
inline constexpr int32_t kPrefillSegmentMultiple = 64;
// Tokens of one run where the backend runs one sequence at a time. Bounds the workspace.
inline constexpr int32_t kPrefillSegmentTokens = 512;
// Tokens of one run where the backend merges sequences. Bounds the workspace.
inline constexpr int32_t kMaxMergedTokens = 1024;
// A call with this many tokens takes the chunked form of the delta rule; a shorter one the scan.
inline constexpr int32_t kChunkedFromTokens = 32;
// A call with this many takes the GEMM, where the backend merges sequences: below, its tiles are too few for a device.
inline constexpr int32_t kGemmFromTokens = 256;

// kPrefillSegmentMultiple; kPrefillSegmentTokens for steps with projections where the bits of the backend's GEMM follow
// the rows.
int32_t PrefillMultiple(const BackendInfo& backend, InputKind kind);

// The kernels that a prefill call takes, by its own length alone.
enum class PrefillPath : uint8_t { kScan, kChunked, kChunkedGemm };
PrefillPath PrefillPathOf(int64_t call_tokens);

class TreeRounds;

class GdnLayerRunner {
 public:
  explicit GdnLayerRunner(Backend& backend);
  GdnLayerRunner(GdnLayerRunner&&) noexcept;
  ~GdnLayerRunner();

  // Advances each sequence by its rows. Slots hold folded states (MaterializeState first). Sequences of one path that
  // follow one another are computed together where the backend merges them, else one by one. A segment's first token is
  // at a multiple of PrefillMultiple in its call.
  absl::Status Prefill(const LayerStep& step);

  // Advances each sequence by its 0 .. max_draft rows through the deferred update. `log_lengths` [sequences], host, in
  // and out. Of a draft with parents each token has the output, and the log entry behind the session's, in the order of
  // the tokens, that a chain of its ancestors and itself would give it.
  // A step that folds is prepared first (Backend::Prepare), so that it fails, where it does, before it has changed a
  // state.
  absl::Status Decode(const LayerStep& step, int32_t* log_lengths);
  // Whether the last Decode has issued what folds: if that failed, or what came after it, the states of sequences whose
  // logs were to be folded are not known. A step without folds leaves every state as it was until logs are advanced.
  bool may_have_folded() const { return may_have_folded_; }

 private:
  struct Mixer;  // the tensors from conv1d to the gated norm

  struct Piece;  // of a prefill: rows of one sequence

  absl::Status RunPieces(const LayerStep& step, absl::Span<const Piece> pieces);
  absl::Status IssueDecode(const LayerStep& step, int32_t* log_lengths);
  absl::Status PrepareFolds(const LayerStep& step, const int32_t* log_lengths);
  absl::Status Run(const LayerStep& step, int32_t* log_lengths);
  absl::Status RunDeltaRule(const LayerStep& step, int32_t* log_lengths);
  absl::Status RunMixer(const LayerStep& step, int32_t* log_lengths);  // the other kinds
  absl::Status Mix(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths);
  absl::Status MixRows(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths);  // but for the norm
  absl::Status DeltaRule(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths,
                         const float* records);
  absl::Status ZeroOutput(const LayerStep& step, int32_t sequence);
  // Of drafts that are trees: what follows the ancestors runs for each path, the rest for each token.
  static bool HasTree(const LayerStep& step);
  absl::Status IssueTrees(const LayerStep& step, int32_t* log_lengths);
  absl::Status MixRowsOfTrees(const LayerStep& step, const Mixer& mixer);
  absl::Status DeltaRuleOfTrees(const LayerStep& step, const DeltaRuleParams& rule);

  // Gives each part its number of floats, 64-byte aligned, null for none; what an earlier call gave is void.
  struct Part {
    float** data;
    int64_t floats;
  };
  using Parts = absl::InlinedVector<Part, 24>;
  absl::Status Reserve(absl::Span<const Part> parts) { return ReserveIn(workspace_, parts); }
  absl::Status ReserveIn(DeviceBuffer& workspace, absl::Span<const Part> parts);
  // Reserves `parts`, and float32 room for the step's tensors of other dtypes, which the step then names; inputs are
  // widened.
  absl::Status ReserveWidened(Parts parts, LayerStep& step);
  // The other way, for the output.
  absl::Status Narrow(const LayerStep& widened, const LayerStep& step);

  Backend& backend_;
  DeviceBuffer workspace_;
  DeviceBuffer path_rows_;  // of trees
  std::unique_ptr<TreeRounds> trees_;
  PrefillPath path_ = PrefillPath::kScan;  // of the prefill that runs
  std::vector<int32_t> moved_lengths_;     // kept for its memory
  bool may_have_folded_ = false;
};

}  // namespace gdn
