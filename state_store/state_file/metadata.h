// Writes and parses the entries of a state file's __metadata__, and names the file's tensors. For this folder only.
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
#include "base/files/safetensors.h"
#include "state_store/session_image.h"

namespace gdn::state_file {

using Metadata = std::map<std::string, std::string>;

inline constexpr std::string_view kFormat = "gdn.state";
inline constexpr std::string_view kLayerPrefix = "layer.";
inline constexpr std::string_view kHeader = "header";  // names the "tensor" in errors that concern no tensor
inline constexpr int32_t kMaxLayerCount = 4096;
// Most bytes of a model's or principal's name or of a numerics_id in a file. Servers write at most some dozens.
inline constexpr size_t kMostNameBytes = 256;

inline constexpr std::string_view kConvState = "conv_state";
inline constexpr std::string_view kRecurrentState = "recurrent_state";
inline constexpr std::string_view kBaseState = "base_state";
inline constexpr std::string_view kLogK = "log_k";
inline constexpr std::string_view kLogU = "log_u";
inline constexpr std::string_view kLogG = "log_g";
inline constexpr std::string_view kDraftConvState = "draft_conv_state";
inline constexpr std::string_view kReply = "reply";
// Tensors of a layer, in the order of the file.
inline constexpr std::array<std::string_view, 8> kParts = {kConvState, kDraftConvState, kRecurrentState, kBaseState,
                                                           kLogK,      kLogU,           kLogG,           kReply};

std::string TensorName(int32_t layer, std::string_view part);  // "layer.3.log_k"

// Returns the shape of one float tensor of a layer with these counts. `part`: one of kParts, but not kReply.
std::vector<int64_t> PartShape(std::string_view part, const LayerDims& dims, const SlotExtent& extent);

// The log's tensors, with the members of SlotView that hold them.
inline constexpr std::pair<std::string_view, absl::Span<const float> SlotView::*> kLogParts[] = {
    {kLogK, &SlotView::log_k}, {kLogU, &SlotView::log_u}, {kLogG, &SlotView::log_g}};

// Make the error DATA_LOSS (INVALID_STATE_FILE: tensor) for a file that is not valid. DamagedTensor's message begins
// with the tensor's name.
absl::Status Damaged(std::string_view message, std::string_view tensor = kHeader);
absl::Status DamagedTensor(std::string_view tensor, std::string_view message);
// Makes the error FAILED_PRECONDITION (STATE_MISMATCH: field).
absl::Status Mismatch(std::string_view field, std::string_view message);
// Makes the error of Damaged that the metadata entry `key` has the text `value`, and that `expected` was expected.
absl::Status InvalidEntry(std::string_view key, std::string_view value, std::string_view expected);

// Metadata entries that identify the model, with the members of SessionHeader that hold them.
inline constexpr std::pair<const char*, std::string SessionHeader::*> kModelEntries[] = {
    {"model", &SessionHeader::model},
    {"family", &SessionHeader::family},
    {"model_fingerprint", &SessionHeader::fingerprint}};

// Return an entry's text. If there is no such entry, RequiredText returns the error of Damaged, OptionalText "".
absl::StatusOr<std::string> RequiredText(const Metadata& metadata, const std::string& key);
std::string OptionalText(const Metadata& metadata, const std::string& key);
// Returns the entry's 32 lower-case hexadecimal digits; "" if there is no such entry. DATA_LOSS (INVALID_STATE_FILE)
// for any other text.
absl::StatusOr<std::string> OptionalId(const Metadata& metadata, const std::string& key);
// DATA_LOSS (INVALID_STATE_FILE) if a model's name or the numerics_id is longer than kMostNameBytes.
absl::Status CheckTextLengths(const Metadata& metadata);
// Parses an RFC 3339 time. nullopt for other texts, also for "infinite-future" and "infinite-past".
std::optional<absl::Time> ParseWallTime(const std::string& text);
// Parse a decimal number from 0 to the type's maximum, without sign, spaces or leading zeros. nullopt for other texts.
std::optional<int32_t> ParseIndex(std::string_view text);
std::optional<int64_t> ParseInt(std::string_view text);

std::string DimsText(const LayerDims& dims);
absl::StatusOr<LayerDims> ParseDims(const std::string& text);

// The metadata entry "layer.L".
struct LayerEntry {
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  bool has_base = true;
  std::optional<StoredReply> reply;  // without its output
};
// Convert a LayerEntry to its text and back. INVALID_ARGUMENT if a request id is not UTF-8; DATA_LOSS
// (INVALID_STATE_FILE) if the text is not a LayerEntry's. `key`: the entry's name, for the error.
absl::StatusOr<std::string> LayerText(const LayerEntry& entry);
absl::StatusOr<LayerEntry> ParseLayer(const std::string& key, const std::string& text);

// AcceptText makes the text of the metadata entry "accept" from the header's accept_* fields; ParseAccept sets the
// fields from it. OwnerText and ParseOwner do so for the entry "owner": fields that only the server that has the
// session needs (StateFileOptions::include_owner). Errors as of LayerText and ParseLayer; some fields may be set then.
// `layer_count`: more than every layer in the list, else an error.
absl::StatusOr<std::string> AcceptText(const SessionHeader& header);
absl::Status ParseAccept(const std::string& text, SessionHeader& header);
absl::StatusOr<std::string> OwnerText(const SessionHeader& header);
absl::Status ParseOwner(const std::string& text, int32_t layer_count, SessionHeader& header);

// LayersText makes the text of the metadata entry "layers" from header.layers (StateFileOptions::list_layers);
// ParseLayerList sets header.layers from it. DATA_LOSS (INVALID_STATE_FILE) unless these are ascending layers below
// `layer_count`, at least one.
std::string LayersText(const SessionHeader& header);
absl::Status ParseLayerList(const std::string& text, int32_t layer_count, SessionHeader& header);

// HeadsText makes the text of the metadata entry "heads" from a slice; ParseHeads sets header.slice from it. ParseHeads
// needs the header's dims and fingerprint, so parse these first. DATA_LOSS (INVALID_STATE_FILE) if the slice does not
// fit them.
std::string HeadsText(const ModelSlice& slice);
absl::Status ParseHeads(const std::string& text, SessionHeader& header);

using Checksums = std::map<std::string, std::string>;  // XXH3-128 as hexadecimal digits, by tensor name
absl::StatusOr<Checksums> ParseChecksums(const std::string& text);

}  // namespace gdn::state_file
