// The text of a state file's __metadata__, and back; the names, shapes and checksums of its tensors. For this folder
// alone.
//
// Thread safety: free functions on values.
//
//   GDN_ASSIGN_OR_RETURN(metadata["dims"], DimsText(dims));
//   GDN_ASSIGN_OR_RETURN(LayerDims dims, ParseDims(metadata.at("dims")));
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/safetensors.h"
#include "state_store/session_image.h"

namespace gdn::state_file {

using Metadata = std::map<std::string, std::string>;

inline constexpr std::string_view kFormat = "gdn.state";
inline constexpr std::string_view kLayerPrefix = "layer.";
inline constexpr std::string_view kHeader = "header";  // the "tensor" of an error that is not about one
inline constexpr int32_t kMaxLayerCount = 4096;
// Bytes of a name that is kept as it is: of a model, of a principal, a numerics_id. Those of servers have some dozens.
inline constexpr size_t kMostNameBytes = 256;

inline constexpr std::string_view kConvState = "conv_state";
inline constexpr std::string_view kRecurrentState = "recurrent_state";
inline constexpr std::string_view kBaseState = "base_state";
inline constexpr std::string_view kLogK = "log_k";
inline constexpr std::string_view kLogU = "log_u";
inline constexpr std::string_view kLogG = "log_g";
inline constexpr std::string_view kDraftConvState = "draft_conv_state";
inline constexpr std::string_view kReply = "reply";
// In the order of the file.
inline constexpr std::array<std::string_view, 8> kParts = {kConvState, kDraftConvState, kRecurrentState, kBaseState,
                                                           kLogK,      kLogU,           kLogG,           kReply};

std::string TensorName(int32_t layer, std::string_view part);  // "layer.3.log_k"

// The shape of one of a layer's tensors of floats.
std::vector<int64_t> PartShape(std::string_view part, const LayerDims& dims, const SlotExtent& extent);

// The log's tensors, and where a view has them.
inline constexpr std::pair<std::string_view, absl::Span<const float> SlotView::*> kLogParts[] = {
    {kLogK, &SlotView::log_k}, {kLogU, &SlotView::log_u}, {kLogG, &SlotView::log_g}};

// DATA_LOSS (INVALID_STATE_FILE: tensor).
absl::Status Damaged(std::string_view message, std::string_view tensor = kHeader);
// FAILED_PRECONDITION (STATE_MISMATCH: field).
absl::Status Mismatch(std::string_view field, std::string_view message);
absl::Status InvalidEntry(std::string_view key, std::string_view value, std::string_view expected);

// What the model is, in entries of its own.
inline constexpr std::pair<const char*, std::string SessionHeader::*> kModelEntries[] = {
    {"model", &SessionHeader::model},
    {"family", &SessionHeader::family},
    {"model_fingerprint", &SessionHeader::fingerprint}};

absl::StatusOr<std::string> RequiredText(const Metadata& metadata, const std::string& key);
std::string OptionalText(const Metadata& metadata, const std::string& key);
// 32 lower-case hexadecimal digits, or none.
absl::StatusOr<std::string> OptionalId(const Metadata& metadata, const std::string& key);
// The texts that are kept as they are (names of models, the writer's numerics_id) are as short as any server's.
absl::Status CheckTextLengths(const Metadata& metadata);
// RFC 3339, of some day: "infinite-future" is none.
std::optional<absl::Time> ParseWallTime(const std::string& text);
// A decimal number in its only spelling: no sign, no space, no leading zero.
std::optional<int32_t> ParseIndex(std::string_view text);
std::optional<int64_t> ParseInt(std::string_view text);

std::string DimsText(const LayerDims& dims);
absl::StatusOr<LayerDims> ParseDims(const std::string& text);

// What "layer.L" says.
struct LayerEntry {
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  bool has_base = true;
  std::optional<StoredReply> reply;  // without its output
};
// INVALID_ARGUMENT where a request id is not UTF-8.
absl::StatusOr<std::string> LayerText(const LayerEntry& entry);
absl::StatusOr<LayerEntry> ParseLayer(const std::string& key, const std::string& text);

// "accept": of header.accept_*. "owner": of what only the session's own server needs.
absl::StatusOr<std::string> AcceptText(const SessionHeader& header);
absl::Status ParseAccept(const std::string& text, SessionHeader& header);
absl::StatusOr<std::string> OwnerText(const SessionHeader& header);
absl::Status ParseOwner(const std::string& text, absl::Time created, int32_t layer_count, SessionHeader& header);

// "heads": of a slice, header.slice. The entry is of the file's dims and model_fingerprint, which have been read.
std::string HeadsText(const ModelSlice& slice);
absl::Status ParseHeads(const std::string& text, SessionHeader& header);

using Checksums = std::map<std::string, std::string>;  // hexadecimal, by tensor
absl::StatusOr<Checksums> ParseChecksums(const std::string& text);

}  // namespace gdn::state_file
