#include "state_store/state_file/head_slices.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/state_file/encode.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/metadata.h"

namespace gdn {
namespace {

using namespace state_file;  // NOLINT: the other half of this file

// The float32 parts. The base may have another dtype.
constexpr std::pair<std::string_view, absl::Span<const float> SlotView::*> kFloatParts[] = {
    {kBaseState, &SlotView::base}, {kLogK, &SlotView::log_k},     {kLogU, &SlotView::log_u},
    {kLogG, &SlotView::log_g},     {kConvState, &SlotView::conv}, {kDraftConvState, &SlotView::draft_conv}};

absl::Status WrongHeads(std::string_view message) { return Mismatch("heads", message); }

// Returns the heads in a file. For a file of the whole model, lists all heads explicitly.
HeadSlice HeadsOf(const StateFile& file) {
  if (!file.header.slice.heads.is_whole()) return file.header.slice.heads;
  const int32_t heads = file.header.dims.value_heads;
  return {.first = 0, .count = heads, .total = heads};
}

std::string HeadsTextOf(const HeadSlice& heads) { return StrCat(heads.first, "-", heads.end() - 1, "/", heads.total); }

const std::string& ModelOf(const SessionHeader& header) {
  return header.slice.heads.is_whole() ? header.fingerprint : header.slice.model_fingerprint;
}

absl::Status CheckIsFull(const StateFile& file) {
  if (file.base_snapshot_id.empty()) return absl::OkStatus();
  return Mismatch("base_snapshot_id", StrCat("the state file is a delta to snapshot ", file.base_snapshot_id,
                                             "; merge it with that one first"));
}

// Returns the reply without its output: the step happened, but this file does not have its output.
StoredReplyPtr WithoutOutput(const StoredReplyPtr& reply) {
  if (reply == nullptr || reply->output_dropped) return reply;
  StoredReply dropped = *reply;
  dropped.output.clear();
  dropped.output_dropped = true;
  return std::make_shared<const StoredReply>(std::move(dropped));
}

// Allocates `bytes` bytes that the file owns. They are written before the file is shared.
char* NewBytes(StateFile& file, size_t bytes) {
  auto values = std::make_shared<std::vector<float>>((bytes + sizeof(float) - 1) / sizeof(float));
  char* data = reinterpret_cast<char*>(values->data());
  file.converted.push_back(std::move(values));
  return data;
}

// A run of values that is contiguous both in the tensor of all heads and in the tensor of the slice.
struct HeadRun {
  int64_t in_whole;  // offset of the first value in the tensor of all heads, in values
  int64_t in_part;   // offset of the first value in the slice's tensor, in values
  int64_t count;
};

// Describes [heads, each] elements: `total` heads, of which `count` are taken, from `first` on.
struct Section {
  int64_t total;
  int64_t first;
  int64_t count;
  int64_t each;
};

// Returns the runs of `heads`. `part`: a tensor of metadata.h (kLogK, ...), which has `elements` values for all heads.
// Every tensor is [outer, heads, values of a head]. A convolution's tensors are three such blocks one after the other:
// q and k by key head, v by value head. No value of a state depends on several heads.
std::vector<HeadRun> HeadRuns(std::string_view part, const LayerDims& dims, const HeadSlice& heads, int64_t elements) {
  const int64_t group = dims.group();
  const auto keys = [&](int64_t each) {
    return Section{.total = dims.key_heads, .first = heads.first / group, .count = heads.count / group, .each = each};
  };
  const auto values = [&](int64_t each) {
    return Section{.total = dims.value_heads, .first = heads.first, .count = heads.count, .each = each};
  };
  std::vector<Section> sections;
  if (part == kConvState || part == kDraftConvState) {
    const int64_t columns = elements / dims.conv_channels();
    sections = {keys(dims.key_dim * columns), keys(dims.key_dim * columns), values(dims.value_dim * columns)};
  } else if (part == kLogK) {
    sections = {keys(dims.key_dim)};
  } else if (part == kLogU) {
    sections = {values(dims.value_dim)};
  } else if (part == kLogG) {
    sections = {values(dims.decay_dim())};
  } else {
    sections = {values(int64_t{dims.key_dim} * dims.value_dim)};
  }
  std::vector<HeadRun> runs;
  int64_t in_part = 0;
  for (int64_t in_whole = 0; in_whole < elements;) {
    for (const Section& section : sections) {
      const int64_t count = section.count * section.each;
      runs.push_back({.in_whole = in_whole + section.first * section.each, .in_part = in_part, .count = count});
      in_whole += section.total * section.each;
      in_part += count;
    }
  }
  return runs;
}

template <typename T>
void TakePart(std::string_view part, const LayerDims& dims, const HeadSlice& heads, absl::Span<const T>& values,
              StateFile& taken) {
  if (values.empty()) return;
  const std::vector<HeadRun> runs = HeadRuns(part, dims, heads, static_cast<int64_t>(values.size()));
  if (runs.size() == 1) {
    values = values.subspan(static_cast<size_t>(runs[0].in_whole), static_cast<size_t>(runs[0].count));
    return;
  }
  const int64_t count = runs.back().in_part + runs.back().count;
  auto* out = reinterpret_cast<T*>(NewBytes(taken, static_cast<size_t>(count) * sizeof(T)));
  for (const HeadRun& run : runs) std::copy_n(values.data() + run.in_whole, run.count, out + run.in_part);
  values = {out, static_cast<size_t>(count)};
}

// Joins a part for all heads from the parts of the slices. The slices must follow one another.
template <typename T>
void JoinPart(std::string_view part, absl::Span<const T> SlotView::*member, const std::vector<const SlotView*>& parts,
              const std::vector<HeadSlice>& heads, StateFile& joined, SlotView& view) {
  size_t elements = 0;
  for (const SlotView* each : parts) elements += (each->*member).size();
  if (elements == 0) return;
  auto* out = reinterpret_cast<T*>(NewBytes(joined, elements * sizeof(T)));
  for (size_t i = 0; i < parts.size(); ++i) {
    const T* from = (parts[i]->*member).data();
    for (const HeadRun& run : HeadRuns(part, joined.header.dims, heads[i], static_cast<int64_t>(elements))) {
      std::copy_n(from + run.in_part, run.count, out + run.in_whole);
    }
  }
  view.*member = {out, elements};
}

absl::StatusOr<std::string> Encode(const StateFile& file) {
  int32_t max_draft = 1;
  for (const StateFileLayer& layer : file.layers) max_draft = std::max(max_draft, layer.extent.draft_length);
  GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(file.header.dims, max_draft, file.base_dtype));
  GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(file, layout, /*owner=*/nullptr));
  const bool lists_layers = !file.header.layers.empty();
  if (!lists_layers) {
    image.header.layers.resize(static_cast<size_t>(file.layer_count));
    std::iota(image.header.layers.begin(), image.header.layers.end(), 0);
  }
  GDN_ASSIGN_OR_RETURN(
      const EncodedStateFile encoded,
      EncodeStateFile(std::make_shared<const SessionImage>(std::move(image)), {.list_layers = lists_layers}));
  std::string bytes;
  bytes.reserve(static_cast<size_t>(encoded.bytes()));
  for (const std::string_view piece : encoded.pieces()) bytes += piece;
  return bytes;
}

// Checks that both have the same number of tokens, by the same last step.
absl::Status CheckSameLayer(const StateFileLayer& a, const StateFileLayer& b) {
  const std::string field = StrCat(kLayerPrefix, a.layer);
  if (a.layer != b.layer) {
    return Mismatch(StrCat(kLayerPrefix, std::min(a.layer, b.layer)),
                    StrCat("layer ", std::min(a.layer, b.layer), " has a state in one file and none in another"));
  }
  const auto counts = [](const StateFileLayer& layer) {
    return StrCat(layer.extent.token_count, " tokens, ", layer.extent.log_length, " of them logged, and a draft of ",
                  layer.extent.draft_length);
  };
  if (a.extent != b.extent) {
    return Mismatch(field, StrCat("layer ", a.layer, " has ", counts(a), " in one file and ", counts(b),
                                  " in another; send the servers that are behind the steps that they have missed"));
  }
  // A step of whole layers gives all slices the same inputs. Steps of other kinds give each slice its own inputs.
  const bool same_kind = a.kind == b.kind || a.kind == InputKind::kNone || b.kind == InputKind::kNone;
  const bool same_step = a.kind != InputKind::kHiddenStates || a.reply == nullptr || b.reply == nullptr ||
                         a.reply->payload == b.reply->payload;
  if (same_kind && same_step) return absl::OkStatus();
  return Mismatch(field, StrCat("layer ", a.layer,
                                "'s last step is not the same in all files; expected slices that took "
                                "the same steps"));
}

absl::Status CheckSameSession(const StateFile& a, const StateFile& b) {
  if (ModelOf(a.header) != ModelOf(b.header)) {
    return Mismatch("model_fingerprint", StrCat("the files are of slices of different models: ", ModelOf(a.header),
                                                " and ", ModelOf(b.header)));
  }
  const HeadSlice heads_a = HeadsOf(a);
  const HeadSlice heads_b = HeadsOf(b);
  if (WholeDims(a.header.dims, heads_a) != WholeDims(b.header.dims, heads_b)) {
    return Mismatch("dims", StrCat("the files are of slices of different dims: ", LayerDimsToString(a.header.dims),
                                   " and ", LayerDimsToString(b.header.dims)));
  }
  if (a.base_dtype != b.base_dtype) {
    return Mismatch("base_dtype",
                    StrCat("the files' bases are ", DTypeName(a.base_dtype), " and ", DTypeName(b.base_dtype)));
  }
  if (a.header.accepted_tokens != b.header.accepted_tokens || a.header.accepted_path != b.header.accepted_path) {
    return Mismatch("accept", "the last AcceptTokens is not the same in all files");
  }
  if (a.header.layers != b.header.layers && !a.header.layers.empty() && !b.header.layers.empty()) {
    return Mismatch("layers", "the files are of sessions with different layers");
  }
  for (size_t i = 0; i < std::max(a.layers.size(), b.layers.size()); ++i) {
    if (i >= a.layers.size() || i >= b.layers.size()) {
      const int32_t layer = (i < a.layers.size() ? a : b).layers[i].layer;
      return Mismatch(StrCat(kLayerPrefix, layer),
                      StrCat("layer ", layer, " has a state in one file and none in another"));
    }
    GDN_RETURN_IF_ERROR(CheckSameLayer(a.layers[i], b.layers[i]));
  }
  return absl::OkStatus();
}

// Checks that each head is in exactly one of the slices.
absl::Status CheckAreAll(const std::vector<HeadSlice>& heads) {
  int32_t end = 0;
  for (const HeadSlice& each : heads) {
    if (each.first != end) {
      return WrongHeads(StrCat("value heads ", std::min(end, each.first), " to ", std::max(end, each.first) - 1,
                               each.first > end ? " are in none of the files" : " are in two of the files",
                               "; expected each of the model's ", each.total, " once"));
    }
    end = each.end();
  }
  if (end == heads.back().total) return absl::OkStatus();
  return WrongHeads(StrCat("value heads ", end, " to ", heads.back().total - 1,
                           " are in none of the files; expected each of the model's ", heads.back().total, " once"));
}

StateFile Join(const std::vector<StateFile>& files) {
  StateFile joined = files[0];
  bool accepted_under_one_id = true;
  std::vector<HeadSlice> heads;
  for (const StateFile& file : files) {
    heads.push_back(HeadsOf(file));
    joined.header.epoch = std::max(joined.header.epoch, file.header.epoch);
    joined.layer_count = std::max(joined.layer_count, file.layer_count);
    if (file.header.accept_request_id != files[0].header.accept_request_id) accepted_under_one_id = false;
    if (file.numerics_id != joined.numerics_id) joined.numerics_id.clear();  // no single server computes like this
  }
  // An id that one server has not seen cannot be an id of the joined session. Stored replies, below, follow the same
  // rule.
  if (!accepted_under_one_id) {
    joined.header.accept_request_id.clear();
    joined.header.accepted_tokens = 0;
    joined.header.accepted_path.clear();
  }
  joined.header.dims = WholeDims(files[0].header.dims, heads[0]);
  joined.header.fingerprint = ModelOf(files[0].header);
  joined.header.slice = {};
  for (size_t l = 0; l < joined.layers.size(); ++l) {
    std::vector<const SlotView*> parts;
    for (const StateFile& file : files) parts.push_back(&file.layers[l].view);
    SlotView view;
    for (const auto& [part, member] : kFloatParts) JoinPart(part, member, parts, heads, joined, view);
    JoinPart(kBaseState, &SlotView::base_bf16, parts, heads, joined, view);
    joined.layers[l].view = view;
    // If only some files have the reply, a retry with its id would not be known everywhere.
    StoredReplyPtr& reply = joined.layers[l].reply;
    const bool is_known = std::all_of(files.begin(), files.end(), [&](const StateFile& file) {
      const StoredReplyPtr& other = file.layers[l].reply;
      return reply != nullptr && other != nullptr && other->request_id == reply->request_id;
    });
    reply = is_known ? WithoutOutput(reply) : nullptr;
  }
  return joined;
}

}  // namespace

bool HasHeads(const StateFile& file, const ModelSlice& slice) {
  if (slice.heads.is_whole() || ModelOf(file.header) != slice.model_fingerprint) return false;
  const HeadSlice own = HeadsOf(file);
  return own.total == slice.heads.total && own != slice.heads && own.first <= slice.heads.first &&
         own.end() >= slice.heads.end();
}

absl::StatusOr<StateFile> TakeHeads(const StateFile& file, const HeadSlice& heads) {
  GDN_RETURN_IF_ERROR(CheckIsFull(file));
  const HeadSlice own = HeadsOf(file);
  const LayerDims& dims = file.header.dims;
  if (file.header.fingerprint.empty()) {
    return WrongHeads("the state file is of a bare operator, which has no slices; expected one of a model");
  }
  if (heads.total != own.total) {
    return WrongHeads(StrCat("heads ", HeadsTextOf(heads), " are of ", heads.total, ", and the state file's model has ",
                             own.total, "; expected FIRST-LAST/", own.total));
  }
  if (heads.count < 1 || heads.first < own.first || heads.end() > own.end()) {
    return WrongHeads(
        StrCat("heads ", HeadsTextOf(heads), " are not all in the state file, which has ", HeadsTextOf(own)));
  }
  const HeadSlice within{.first = heads.first - own.first, .count = heads.count, .total = own.count};
  if (const absl::Status status = CheckHeadSlice(within, dims); !status.ok()) {
    return WrongHeads(StrCat("heads ", HeadsTextOf(heads), " cut the ", dims.group(),
                             " value heads that read a key head; expected whole groups"));
  }
  StateFile taken = file;
  taken.snapshot_id.clear();
  taken.header.dims = SliceDims(dims, within);
  taken.header.slice = {};
  taken.header.fingerprint = SliceFingerprint(ModelOf(file.header), heads);
  if (!heads.is_whole()) taken.header.slice = {.heads = heads, .model_fingerprint = ModelOf(file.header)};
  for (StateFileLayer& layer : taken.layers) {
    for (const auto& [part, member] : kFloatParts) TakePart(part, dims, within, layer.view.*member, taken);
    TakePart(kBaseState, dims, within, layer.view.base_bf16, taken);
    if (within.count < within.total) layer.reply = WithoutOutput(layer.reply);
  }
  return taken;
}

absl::StatusOr<std::string> SliceStateFile(std::string_view file, const HeadSlice& heads) {
  GDN_ASSIGN_OR_RETURN(const StateFile whole, ParseStateFile(file));
  GDN_ASSIGN_OR_RETURN(const StateFile taken, TakeHeads(whole, heads));
  return Encode(taken);
}

absl::StatusOr<std::string> JoinStateFiles(absl::Span<const std::string_view> files) {
  if (files.empty()) return WrongHeads("there are no files; expected those of all slices of a model");
  std::vector<StateFile> parts;
  for (const std::string_view file : files) {
    GDN_ASSIGN_OR_RETURN(StateFile part, ParseStateFile(file));
    GDN_RETURN_IF_ERROR(CheckIsFull(part));
    parts.push_back(std::move(part));
  }
  std::sort(parts.begin(), parts.end(),
            [](const StateFile& a, const StateFile& b) { return HeadsOf(a).first < HeadsOf(b).first; });
  std::vector<HeadSlice> heads;
  for (const StateFile& part : parts) heads.push_back(HeadsOf(part));
  for (const StateFile& part : parts) {
    if (ModelOf(part.header) != ModelOf(parts[0].header)) GDN_RETURN_IF_ERROR(CheckSameSession(parts[0], part));
  }
  GDN_RETURN_IF_ERROR(CheckAreAll(heads));
  for (const StateFile& part : parts) GDN_RETURN_IF_ERROR(CheckSameSession(parts[0], part));
  return Encode(Join(parts));
}

}  // namespace gdn
