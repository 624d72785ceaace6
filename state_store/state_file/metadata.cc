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
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "state_store/state_file/json_integers.h"

namespace gdn::state_file {
namespace {

using Json = nlohmann::json;

// Rows a log can hold under any log_capacity that a writer may have, drafts aside.
constexpr int32_t kMaxLogLength = kLogCapacity + kMaxDraftLimit;

constexpr absl::Duration kMostAge = absl::Hours(1000 * 366 * 24);

constexpr std::pair<const char*, int32_t LayerDims::*> kDimFields[] = {
    {"key_heads", &LayerDims::key_heads},   {"value_heads", &LayerDims::value_heads},
    {"key_dim", &LayerDims::key_dim},       {"value_dim", &LayerDims::value_dim},
    {"conv_width", &LayerDims::conv_width}, {"hidden_size", &LayerDims::hidden_size},
};
// Beside these, only where it says that decays go by channel.
constexpr char kDecayField[] = "decay";
constexpr char kPerChannel[] = "per_channel";

absl::StatusOr<std::string> Dump(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("a name of the session or a request id is not UTF-8");
  }
}

Json Parse(const std::string& text) { return Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false); }

std::optional<int64_t> IntField(const Json& json, const char* field) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(field);
  if (it == json.end() || !it->is_number_unsigned()) return std::nullopt;
  const uint64_t value = it->get<uint64_t>();
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(value);
}

std::optional<int64_t> CountField(const Json& json, const char* field) {
  const std::optional<int64_t> value = IntField(json, field);
  return value.has_value() && *value <= kMaxTokenCount ? value : std::nullopt;
}

// False where the field is there and is not an integer in [0, most].
bool ReadLength(const Json& json, const char* field, int64_t most, int32_t& length) {
  if (!json.contains(field)) return true;
  const auto value = IntField(json, field);
  if (!value.has_value() || *value > most) return false;
  length = static_cast<int32_t>(*value);
  return true;
}

std::optional<std::string> TextField(const Json& json, const char* field) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(field);
  if (it == json.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

// 0 where nobody has said when it was made.
absl::Duration AgeOf(const SessionHeader& header) {
  if (header.born == SteadyTime::InfinitePast()) return absl::ZeroDuration();
  return std::clamp(SteadyNow() - header.born, absl::ZeroDuration(), kMostAge);
}

std::optional<Hash128> ParseHash(const std::optional<std::string>& text) {
  if (!text.has_value() || text->size() != 32) return std::nullopt;
  Hash128 hash;
  const char* middle = text->data() + 16;
  std::from_chars(text->data(), middle, hash.high, /*base=*/16);
  std::from_chars(middle, middle + 16, hash.low, /*base=*/16);
  if (hash.ToHex() != *text) return std::nullopt;  // something other than lower-case digits
  return hash;
}

// Seconds; null: without end.
Json SecondsJson(absl::Duration duration) {
  return duration == absl::InfiniteDuration() ? Json() : Json(absl::ToDoubleSeconds(duration));
}

std::optional<absl::Duration> ParseSeconds(const Json& json, const char* field) {
  const auto it = json.find(field);
  if (it == json.end()) return std::nullopt;
  if (it->is_null()) return absl::InfiniteDuration();
  if (!it->is_number()) return std::nullopt;
  return absl::Seconds(it->get<double>());
}

absl::Status ParseReply(const std::string& key, const std::string& text, const Json& json, LayerEntry& entry) {
  const auto request_id = TextField(json, "request_id");
  const auto payload = ParseHash(TextField(json, "payload"));
  const auto token_count = CountField(json, "token_count");
  const auto compute_time_us = IntField(json, "compute_time_us");
  if (!request_id || !payload || !token_count || !compute_time_us) {
    return InvalidEntry(key, text,
                        "a reply of request_id, payload (32 hexadecimal digits), token_count and compute_time_us");
  }
  const auto output = json.find("output");
  entry.reply = StoredReply{*request_id,  *payload,         /*output=*/{},
                            *token_count, *compute_time_us, output != json.end() && *output == "dropped"};
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
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile, StrCat("not a valid state file: ", message),
                   {{"tensor", std::string(tensor)}});
}

absl::Status Mismatch(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch, message,
                   {{"field", std::string(field)}});
}

absl::Status InvalidEntry(std::string_view key, std::string_view value, std::string_view expected) {
  return Damaged(StrCat("its __metadata__ entry '", key, "' is '", value, "'; expected ", expected));
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
  const auto request_id = TextField(json, "request_id");
  const auto accepted = IntField(json, "accepted_tokens");
  if (!request_id || !accepted || *accepted > kMaxDraftLimit || !ReadIntegers(json, "path", 0, header.accepted_path)) {
    return InvalidEntry("accept", text, "a JSON object with request_id and accepted_tokens, and maybe a path");
  }
  header.accept_request_id = *request_id;
  header.accepted_tokens = static_cast<int32_t>(*accepted);
  return absl::OkStatus();
}

absl::StatusOr<std::string> OwnerText(const SessionHeader& header) {
  Json json{{"principal", header.principal},
            {"id", header.id},
            {"affinity", header.affinity},
            {"create_time", absl::FormatTime(absl::RFC3339_full, header.create_time, absl::UTCTimeZone())},
            {"age_s", absl::ToDoubleSeconds(AgeOf(header))},
            {"idle_ttl_s", SecondsJson(header.idle_ttl)},
            {"max_lifetime_s", SecondsJson(header.max_lifetime)},
            {"request", header.request.ToHex()},
            {"changes", header.changes},
            {"layers", header.layers}};
  if (header.prefix_tokens > 0) json["prefix_tokens"] = header.prefix_tokens;
  return Dump(json);
}

absl::Status ParseOwner(const std::string& text, absl::Time created, SessionHeader& header) {
  const Json json = Parse(text);
  const auto invalid = [&text](std::string_view expected) { return InvalidEntry("owner", text, expected); };
  for (const auto& [field, member] :
       {std::pair{"principal", &SessionHeader::principal}, std::pair{"id", &SessionHeader::id},
        std::pair{"affinity", &SessionHeader::affinity}}) {
    const auto value = TextField(json, field);
    if (!value.has_value()) return invalid(StrCat("a JSON object with the text '", field, "'"));
    header.*member = *value;
  }
  const auto create_time = TextField(json, "create_time");
  if (!create_time.has_value() || !absl::ParseTime(absl::RFC3339_full, *create_time, &header.create_time, nullptr)) {
    return invalid("create_time as RFC 3339");
  }
  // Files of before have no age; both of their times are of one clock.
  absl::Duration age = created - header.create_time;
  if (json.contains("age_s")) {
    const auto seconds = ParseSeconds(json, "age_s");
    if (!seconds.has_value() || *seconds < absl::ZeroDuration() || *seconds > kMostAge) {
      return invalid("age_s, of at most 1000 years");
    }
    age = *seconds;
  }
  header.born = SteadyNow() - std::clamp(age, absl::ZeroDuration(), kMostAge);
  const auto idle_ttl = ParseSeconds(json, "idle_ttl_s");
  const auto max_lifetime = ParseSeconds(json, "max_lifetime_s");
  if (!idle_ttl.has_value() || !max_lifetime.has_value()) return invalid("idle_ttl_s and max_lifetime_s, or null");
  header.idle_ttl = *idle_ttl;
  header.max_lifetime = *max_lifetime;
  const auto request = ParseHash(TextField(json, "request"));
  if (!request.has_value()) return invalid("request as 32 hexadecimal digits");
  header.request = *request;
  if (json.contains("changes")) {
    const auto changes = IntField(json, "changes");
    if (!changes.has_value()) return invalid("changes as a number that is not negative");
    header.changes = *changes;
  }
  if (json.contains("prefix_tokens")) {
    const auto tokens = CountField(json, "prefix_tokens");
    if (!tokens.has_value()) return invalid(StrCat("prefix_tokens as a number of at most ", kMaxTokenCount));
    header.prefix_tokens = *tokens;
  }
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array()) return invalid("an array of layers");
  header.layers.clear();
  for (const Json& layer : *layers) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= kMaxLayerCount ||
        (!header.layers.empty() && layer.get<int32_t>() <= header.layers.back())) {
      return invalid(StrCat("ascending layers below ", kMaxLayerCount));
    }
    header.layers.push_back(layer.get<int32_t>());
  }
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
