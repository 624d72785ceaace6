// Runs a Gated DeltaNet layer: the operators in order, for each kind of input, as prefill and as decode.
//
//   hidden_states: projection -> split -> conv1d + SiLU -> l2norm, gates -> delta rule -> gated RMSNorm -> projection
//   projected:     from conv1d to the gated RMSNorm
//   delta_rule:    the delta rule alone (q scaled; q and k normalised on request)
// Thread safety: a GdnLayerRunner is for one thread. Ownership: it owns its workspace, which grows to the largest call.
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
#include "base/step_shape.h"
#include "kernels/backend.h"
#include "kernels/layer/layer_weights.h"

namespace gdn {

// One step of one layer for a packed batch. All pointers are backend memory except the index arrays (host), which are
// only read during the call. Nothing is owned.
struct LayerStep {
  const LayerWeights* weights = nullptr;  // not used, and may be null, for kDeltaRule only
  StatePoolView pool = {};
  PackedBatch batch = {};
  const int64_t* token_counts = nullptr;  // [sequences] host: tokens before this step; may be null for kDeltaRule
  InputKind kind = InputKind::kHiddenStates;
  // Prefill only, [sequences] host: tokens of the whole call that each sequence's rows are a segment of, at least its
  // rows. Null: the rows are the whole call. Determines the segment's kernels, and so its bits.
  const int32_t* call_tokens = nullptr;
  // Decode only; see DeltaRuleDecodeParams.
  const int32_t* base_slots = nullptr;  // [sequences] host
  bool draft = false;
  // Drafts only, [tokens] host: index in its sequence's rows of each token's parent, or -1 if the token follows the
  // session's last one (base/draft_tree.h). Null: each token follows the one before it.
  const int32_t* draft_parents = nullptr;

  // Dense tensors of any dtype, of which the kind's are read. All arithmetic is float32.
  InputTensor hidden_states = {};  // [tokens, D]
  InputTensor mixed_qkv = {};      // [tokens, C]
  InputTensor z = {};              // [tokens, HV * V]
  InputTensor b = {};              // [tokens, HV]
  InputTensor a = {};              // [tokens, HV], or [tokens, HV * K] if dims.decay is kPerChannel
  InputTensor q = {};              // [tokens, H * K]
  InputTensor k = {};              // [tokens, H * K]
  InputTensor v = {};              // [tokens, HV * V]
  InputTensor g = {};              // [tokens, HV], or [tokens, HV * K] if dims.decay is kPerChannel
  InputTensor beta = {};           // [tokens, HV]
  // kDeltaRule only. The other kinds scale q by K^-0.5, normalise always, and use the model's bound of beta.
  DeltaRuleNumbers delta_rule = {};

  OutputTensor output = {};  // [tokens, D], or [tokens, HV * V] for projected and delta_rule
};

// An input tensor of a kind, and its elements per token. LayerFields lists a kind's tensors in the API's order, in
// `storage`, to which its result points; empty for kNone.
struct LayerField {
  InputTensor LayerStep::*tensor;
  int64_t features;
};
absl::Span<const LayerField> LayerFields(InputKind kind, const LayerDims& dims,
                                         std::array<LayerField, kMaxStepFields>& storage);
int64_t LayerOutputFeatures(InputKind kind, const LayerDims& dims);

// INVALID_ARGUMENT naming what is missing, out of range or inconsistent with the pool, for any step, a prefill's or a
// decode's. The runner calls these before it changes anything. A batch without tokens needs no tensors.
absl::Status ValidateLayerStep(const LayerStep& step);
absl::Status ValidatePrefillStep(const LayerStep& step);
absl::Status ValidateDecodeStep(const LayerStep& step, const int32_t* log_lengths);

// Segments of a prefill call end at multiples of this many tokens from its first one, or at its end. It is a multiple
// of both chunk lengths, so that no segment cuts a chunk.
inline constexpr int32_t kPrefillSegmentMultiple = 64;
// Most tokens that a runner computes at a time if the backend runs one sequence at a time. Bounds the workspace.
inline constexpr int32_t kPrefillSegmentTokens = 512;
// Most tokens, of all sequences together, that a runner computes at a time if the backend merges sequences. Bounds the
// workspace.
inline constexpr int32_t kMaxMergedTokens = 1024;
// Prefill calls with at least this many tokens a sequence use the chunked form of the delta rule; shorter ones the
// scan.
inline constexpr int32_t kChunkedFromTokens = 32;
// Prefill calls with at least this many tokens a sequence project by the path kSequenceGemm; shorter ones have too few
// tiles. Only for backends that merge sequences: others always use that path in a prefill.
inline constexpr int32_t kGemmFromTokens = 256;

// Returns the number of tokens of whose multiples prefill segments must end: kPrefillSegmentTokens for hidden states on
// a backend whose stable_gemm_rows are fewer, else kPrefillSegmentMultiple.
int32_t PrefillMultiple(const BackendInfo& backend, InputKind kind);

// The kernels of a sequence's prefill call: the scan, the chunked form, or that with a GEMM for the projections.
// PrefillPathOf chooses by the tokens of the sequence's whole call only, so that batching changes no bits.
enum class PrefillPath : uint8_t { kScan, kChunked, kChunkedGemm };
PrefillPath PrefillPathOf(int64_t call_tokens);

class TreeRounds;

class GdnLayerRunner {
 public:
  explicit GdnLayerRunner(Backend& backend);
  GdnLayerRunner(GdnLayerRunner&&) noexcept;
  ~GdnLayerRunner();

  // Advances each sequence by its rows, which may be none; padding gets zeros as output. Slots must hold folded states
  // (call MaterializeState first). Adjacent sequences with the same path are computed together if the backend merges
  // them, else one by one. A segment must start at a multiple of PrefillMultiple in its call. Issues work, which may
  // run later. INVALID_ARGUMENT, and nothing is issued, if ValidatePrefillStep refuses the step.
  absl::Status Prefill(const LayerStep& step);

  // Advances each sequence by its 0 .. max_draft rows through the deferred update. `log_lengths` [sequences], host, is
  // read and updated on return. In a draft with parents, each token gets the output and log entry that a chain of its
  // ancestors and itself would give it. Entries are stored behind the session's, in token order. A step that folds is
  // prepared first (Backend::Prepare), so that if it fails, it fails before it changes a state. Padding gets zeros as
  // output. Issues work, which may run later. INVALID_ARGUMENT as from ValidateDecodeStep.
  absl::Status Decode(const LayerStep& step, int32_t* log_lengths);
  // Issues what Decode would, and leaves `log_lengths` as they are. Call it in a dry run (Backend::Prepare), to acquire
  // what a Decode needs before work that cannot be repeated.
  absl::Status RehearseDecode(const LayerStep& step, const int32_t* log_lengths);
  // True if the last Decode was no draft and came as far as its delta rule, which may fold. If Decode or later work
  // failed then, the states of sequences whose logs were to be folded are undefined. Others change no state until the
  // caller advances logs.
  bool may_have_folded() const { return may_have_folded_; }
  // True if the last Decode came as far as an operator that writes to slots: log entries or convolution columns of its
  // tokens.
  bool may_have_written() const { return may_have_written_; }

 private:
  struct Mixer;  // the tensors from conv1d to the gated norm

  struct Piece;  // rows of one sequence in a prefill

  absl::Status RunPieces(const LayerStep& step, absl::Span<const Piece> pieces);
  absl::Status IssueDecode(const LayerStep& step, int32_t* log_lengths);
  absl::Status PrepareFolds(const LayerStep& step, const int32_t* log_lengths);
  absl::Status Run(const LayerStep& step, int32_t* log_lengths);
  absl::Status RunDeltaRule(const LayerStep& step, int32_t* log_lengths);
  // Runs a step of kind hidden_states or projected.
  absl::Status RunMixer(const LayerStep& step, int32_t* log_lengths);
  absl::Status Mix(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths);
  absl::Status MixRows(const LayerStep& step, const Mixer& mixer, int32_t* log_lengths);  // without the norm
  static MixerInputParams MixerInputOf(const LayerStep& step, const Mixer& mixer, const int32_t* log_lengths);
  static DeltaRuleParams RuleOf(const LayerStep& step, const Mixer& mixer);
  static DeltaRuleDecodeParams DecodeOf(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths,
                                        const float* records);
  absl::Status DeltaRule(const LayerStep& step, const DeltaRuleParams& rule, int32_t* log_lengths,
                         const float* records);
  absl::Status ZeroOutput(const LayerStep& step, int32_t sequence);
  // HasTree is true if a sequence's draft parents are no chain. The other three run such a step: operators that depend
  // on a token's ancestors once per path (TreeRounds), the others once per token.
  static bool HasTree(const LayerStep& step);
  absl::Status IssueTrees(const LayerStep& step, int32_t* log_lengths);
  absl::Status MixRowsOfTrees(const LayerStep& step, const Mixer& mixer);
  absl::Status DeltaRuleOfTrees(const LayerStep& step, const DeltaRuleParams& rule);

  // A tensor's pointer, and the floats that it needs. Reserve and ReserveIn give each of `parts` its floats in the
  // workspace, 64-byte aligned, and set its pointer; null for 0 floats. Pointers set by earlier calls become invalid.
  // They wait for the device if the workspace must grow, and fail as Backend::Allocate does.
  struct Part {
    float** data;
    int64_t floats;
  };
  using Parts = absl::InlinedVector<Part, 24>;
  absl::Status Reserve(absl::Span<const Part> parts) { return ReserveIn(workspace_, parts); }
  absl::Status ReserveIn(DeviceBuffer& workspace, absl::Span<const Part> parts);
  // Reserves `parts`, and float32 memory for the step's tensors of other dtypes. Converts those inputs and points the
  // step, also its output, to the float32 tensors. Hidden states stay: projections read and write any dtype.
  absl::Status ReserveWidened(Parts parts, LayerStep& step);
  // Converts the float32 output of `widened` (ReserveWidened's step) to that of `step`, in its dtype. Does nothing if
  // that is float32.
  absl::Status Narrow(const LayerStep& widened, const LayerStep& step);

  Backend& backend_;
  DeviceBuffer workspace_;
  DeviceBuffer path_rows_;  // tensors with one row per token of a path; for drafts that are trees
  std::unique_ptr<TreeRounds> trees_;
  PrefillPath path_ = PrefillPath::kScan;  // path of the current prefill
  std::vector<int32_t> moved_lengths_;     // a member to reuse its memory
  bool may_have_folded_ = false;
  bool may_have_written_ = false;
};

}  // namespace gdn
