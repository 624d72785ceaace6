#include "state_store/state_file/metadata.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/time/time.h"
#include "base/count_limits.h"
#include "base/draft_tree.h"
#include "base/error.h"
#include "base/name_rules.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "state_store/state_file/json_fields.h"

namespace gdn::state_file {
namespace {

// Most entries of a log without drafts, for any log_capacity that a writer may use.
constexpr int32_t kMaxLogLength = kLogCapacity + kMaxDraftLimit;

// Most bytes of a damaged file's texts in an error, and most bytes of the error: gRPC sends only some kilobytes.
constexpr size_t kShownBytes = 256;
constexpr size_t kShownMessageBytes = 1024;

constexpr std::pair<const char*, int32_t LayerDims::*> kDimFields[] = {
    {"key_heads", &LayerDims::key_heads},   {"value_heads", &LayerDims::value_heads},
    {"key_dim", &LayerDims::key_dim},       {"value_dim", &LayerDims::value_dim},
    {"conv_width", &LayerDims::conv_width}, {"hidden_size", &LayerDims::hidden_size},
};
// In addition to kDimFields, and only if decays go by channel.
constexpr char kDecayField[] = "decay";
constexpr char kPerChannel[] = "per_channel";

// Returns false if the field is there and is not an integer in [0, most].
bool ReadLength(const Json& json, const char* field, int64_t most, int32_t& length) {
  if (!json.contains(field)) return true;
  const auto value = IntField(json, field);
  if (!value.has_value() || *value > most) return false;
  length = static_cast<int32_t>(*value);
  return true;
}

// Returns a request id that calls may use; nothing if the field has no such id.
std::optional<std::string> RequestIdField(const Json& json) {
  std::optional<std::string> id = TextField(json, "request_id");
  if (id.has_value() && (id->empty() || !IsId(*id, kMaxRequestIdLength))) id.reset();
  return id;
}

absl::Status ParseReply(const std::string& key, const std::string& text, const Json& json, LayerEntry& entry) {
  const auto request_id = RequestIdField(json);
  const auto payload = ParseHash(TextField(json, "payload"));
  const auto token_count = CountField(json, "token_count");
  const auto compute_time_us = CountField(json, "compute_time_us");
  if (!request_id || !payload || !token_count || !compute_time_us || *token_count > entry.extent.token_count) {
    return InvalidEntry(key, text,
                        StrCat("a reply of request_id (1 to ", kMaxRequestIdLength,
                               " characters of [A-Za-z0-9._~-]), payload (32 hexadecimal digits), token_count, at most "
                               "the layer's, and compute_time_us"));
  }
  const auto output = json.find("output");
  const bool dropped = output != json.end();
  if (dropped && *output != "dropped") return InvalidEntry(key, text, "a reply's output to be dropped, or not there");
  entry.reply = StoredReply{*request_id, *payload, /*output=*/{}, *token_count, *compute_time_us, dropped};
  return absl::OkStatus();
}

}  // namespace

std::string TensorName(int32_t layer, std::string_view part) { return StrCat(kLayerPrefix, layer, ".", part); }

std::vector<int64_t> PartShape(std::string_view part, const LayerDims& d, const SlotExtent& extent) {
  const int64_t entries = int64_t{extent.log_length} + extent.draft_length;
  if (part == kConvState) return {d.conv_channels(), d.conv_width - 1};
  if (part == kDraftConvState) return {d.conv_channels(), extent.draft_length};
  if (part == kLogK) return {entries, d.key_heads, d.key_dim};
  if (part == kLogU) return {entries, d.value_heads, d.value_dim};
  if (part == kLogG) {
    return d.decays_by_channel() ? std::vector<int64_t>{entries, d.value_heads, d.key_dim}
                                 : std::vector<int64_t>{entries, d.value_heads};
  }
  return {d.value_heads, d.key_dim, d.value_dim};  // recurrent_state and base_state
}

absl::Status Damaged(std::string_view message, std::string_view tensor) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("not a valid state file: ", Shown(message, kShownMessageBytes)),
                   {{"tensor", Shown(tensor, kShownBytes)}});
}

absl::Status DamagedTensor(std::string_view tensor, std::string_view message) {
  return Damaged(StrCat("tensor '", tensor, "' ", message), tensor);
}

absl::Status Mismatch(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch, message,
                   {{"field", std::string(field)}});
}

absl::Status InvalidEntry(std::string_view key, std::string_view value, std::string_view expected) {
  return Damaged(StrCat("its __metadata__ entry '", Shown(key, kShownBytes), "' is '", Shown(value, kShownBytes),
                        "'; expected ", expected));
}

absl::StatusOr<std::string> RequiredText(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  if (it == metadata.end()) {
    return Damaged(StrCat("its __metadata__ has no '", key, "'; expected the metadata that ExportState writes"));
  }
  return it->second;
}

std::string OptionalText(const Metadata& metadata, const std::string& key) {
  const auto it = metadata.find(key);
  return it == metadata.end() ? std::string() : it->second;
}

absl::StatusOr<std::string> OptionalId(const Metadata& metadata, const std::string& key) {
  const std::string id = OptionalText(metadata, key);
  if (id.empty() || ParseHash(id).has_value()) return id;
  return InvalidEntry(key, id, "32 lower-case hexadecimal digits");
}

absl::Status CheckTextLengths(const Metadata& metadata) {
  for (const auto& [key, text] : metadata) {
    const bool is_name = key == "numerics_id" || std::ranges::any_of(kModelEntries, [&key = key](const auto& entry) {
                           return key == entry.first;
                         });
    if (!is_name || text.size() <= kMostNameBytes) continue;
    return InvalidEntry(key, text, StrCat("at most ", kMostNameBytes, " bytes"));
  }
  return absl::OkStatus();
}

std::optional<absl::Time> ParseWallTime(const std::string& text) {
  absl::Time time;
  if (!absl::ParseTime(absl::RFC3339_full, text, &time, nullptr)) return std::nullopt;
  if (time == absl::InfiniteFuture() || time == absl::InfinitePast()) return std::nullopt;
  return time;
}

std::optional<int64_t> ParseInt(std::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(AbslView(text), &value) || value < 0 || StrCat(value) != text) return std::nullopt;
  return value;
}

std::optional<int32_t> ParseIndex(std::string_view text) {
  const auto value = ParseInt(text);
  if (!value.has_value() || *value > std::numeric_limits<int32_t>::max()) return std::nullopt;
  return static_cast<int32_t>(*value);
}

std::string DimsText(const LayerDims& dims) {
  Json json = Json::object();
  for (const auto& [field, member] : kDimFields) json[field] = dims.*member;
  if (dims.decays_by_channel()) json[kDecayField] = kPerChannel;
  return json.dump();
}

absl::StatusOr<LayerDims> ParseDims(const std::string& text) {
  const Json json = Parse(text);
  LayerDims dims;
  for (const auto& [field, member] : kDimFields) {
    const auto value = IntField(json, field);
    if (!value.has_value() || *value > std::numeric_limits<int32_t>::max()) {
      return InvalidEntry("dims", text, StrCat("a JSON object with the non-negative integer '", field, "'"));
    }
    dims.*member = static_cast<int32_t>(*value);
  }
  if (json.contains(kDecayField)) {
    if (json[kDecayField] != kPerChannel) {
      return InvalidEntry("dims", text, StrCat("'", kDecayField, "' to be ", kPerChannel, ", or not there"));
    }
    dims.decay = DecayKind::kPerChannel;
  }
  if (const absl::Status status = ValidateLayerDims(dims); !status.ok()) {
    return InvalidEntry("dims", text, StrCat("valid dimensions: ", absl::string_view(status.message())));
  }
  return dims;
}

absl::StatusOr<std::string> LayerText(const LayerEntry& entry) {
  Json json{{"token_count", entry.extent.token_count},
            {"log_length", entry.extent.log_length},
            {"draft_length", entry.extent.draft_length},
            {"input_kind", std::string(InputKindName(entry.kind))},
            {"base", entry.has_base ? "here" : "left_out"}};
  if (!entry.extent.draft_parents.empty()) json["draft_parents"] = entry.extent.draft_parents;
  if (entry.reply.has_value()) {
    json["reply"] = Json{{"request_id", entry.reply->request_id},
                         {"payload", entry.reply->payload.ToHex()},
                         {"token_count", entry.reply->token_count},
                         {"compute_time_us", entry.reply->compute_time_us}};
    if (entry.reply->output_dropped) json["reply"]["output"] = "dropped";
  }
  return Dump(json);
}

absl::StatusOr<LayerEntry> ParseLayer(const std::string& key, const std::string& text) {
  const Json json = Parse(text);
  LayerEntry entry;
  const auto token_count = CountField(json, "token_count");
  if (!token_count.has_value()) {
    return InvalidEntry(key, text, StrCat("a JSON object with 'token_count', an integer in [0, ", kMaxTokenCount, "]"));
  }
  entry.extent.token_count = *token_count;
  if (!ReadLength(json, "log_length", std::min<int64_t>(*token_count, kMaxLogLength), entry.extent.log_length)) {
    return InvalidEntry(key, text, StrCat("a log_length of at most token_count and ", kMaxLogLength));
  }
  const int64_t most_draft = std::min<int64_t>(kMaxDraftLimit, kMaxTokenCount - *token_count);
  if (!ReadLength(json, "draft_length", most_draft, entry.extent.draft_length)) {
    return InvalidEntry(key, text, StrCat("a draft_length of at most ", most_draft));
  }
  std::vector<int32_t>& parents = entry.extent.draft_parents;
  if (!ReadIntegers(json, "draft_parents", kDraftRoot, parents) || !CheckDraftParents(parents, "draft_parents").ok() ||
      (!parents.empty() && parents.size() != static_cast<size_t>(entry.extent.draft_length))) {
    return InvalidEntry(key, text, "draft_parents to be one for each token of the draft, an earlier one or -1");
  }
  if (json.contains("input_kind")) {
    constexpr InputKind kKinds[] = {InputKind::kNone, InputKind::kHiddenStates, InputKind::kProjected,
                                    InputKind::kDeltaRule};
    const auto* kind = std::ranges::find(kKinds, TextField(json, "input_kind").value_or(""), InputKindName);
    if (kind == std::end(kKinds)) {
      return InvalidEntry(key, text, "input_kind to be none, hidden_states, projected or delta_rule");
    }
    entry.kind = *kind;
  }
  if (json.contains("base")) {
    const auto base = TextField(json, "base");
    if (base != "here" && base != "left_out") return InvalidEntry(key, text, "base to be here or left_out");
    entry.has_base = base == "here";
  }
  if (const auto reply = json.find("reply"); reply != json.end()) {
    GDN_RETURN_IF_ERROR(ParseReply(key, text, *reply, entry));
  }
  return entry;
}

absl::StatusOr<std::string> AcceptText(const SessionHeader& header) {
  Json json{{"request_id", header.accept_request_id}, {"accepted_tokens", header.accepted_tokens}};
  if (!header.accepted_path.empty()) json["path"] = header.accepted_path;
  return Dump(json);
}

absl::Status ParseAccept(const std::string& text, SessionHeader& header) {
  const Json json = Parse(text);
  const auto request_id = RequestIdField(json);
  const auto accepted = IntField(json, "accepted_tokens");
  std::vector<int32_t>& path = header.accepted_path;
  if (!request_id || !accepted || *accepted > kMaxDraftLimit || !ReadIntegers(json, "path", 0, path) ||
      (!path.empty() && path.size() != static_cast<size_t>(*accepted))) {
    return InvalidEntry(
        "accept", text,
        StrCat("a JSON object with request_id (1 to ", kMaxRequestIdLength,
               " characters of [A-Za-z0-9._~-]) and accepted_tokens, and maybe a path of as many tokens"));
  }
  header.accept_request_id = *request_id;
  header.accepted_tokens = static_cast<int32_t>(*accepted);
  return absl::OkStatus();
}

absl::StatusOr<Checksums> ParseChecksums(const std::string& text) {
  const Json json = Parse(text);
  if (!json.is_object()) return InvalidEntry("checksums", text, "a JSON object");
  Checksums checksums;
  for (const auto& [name, value] : json.items()) {
    if (!value.is_string()) return InvalidEntry("checksums", text, "hexadecimal digits for each tensor");
    checksums.emplace(name, value.get<std::string>());
  }
  return checksums;
}

}  // namespace gdn::state_file
