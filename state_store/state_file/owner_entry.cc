// The entry "owner" of a state file's __metadata__: data that only the session's own server needs. And the entry
// "layers": the session's layers, which an import needs too.
#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include "base/name_rules.h"
#include "base/string_cat.h"
#include "state_store/state_file/json_fields.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {
namespace {

constexpr absl::Duration kMostAge = absl::Hours(1000 * 366 * 24);

// Returns the session's age, or 0 if the header has no time of birth.
absl::Duration AgeOf(const SessionHeader& header) {
  if (header.born == SteadyTime::InfinitePast()) return absl::ZeroDuration();
  return std::clamp(SteadyNow() - header.born, absl::ZeroDuration(), kMostAge);
}

// Returns seconds, or null for infinite.
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

// Reads ascending layers below `layer_count`. Returns "", or what was expected.
std::string ReadLayerList(const Json& list, int32_t layer_count, std::vector<int32_t>& layers) {
  layers.clear();
  for (const Json& layer : list) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= static_cast<uint64_t>(layer_count) ||
        (!layers.empty() && layer.get<int32_t>() <= layers.back())) {
      return StrCat("ascending layers below layer_count, ", layer_count);
    }
    layers.push_back(layer.get<int32_t>());
  }
  return layers.empty() ? "at least one layer" : "";
}

}  // namespace

std::string LayersText(const SessionHeader& header) { return Json(header.layers).dump(); }

absl::Status ParseLayerList(const std::string& text, int32_t layer_count, SessionHeader& header) {
  const Json list = Parse(text);
  if (!list.is_array()) return InvalidEntry("layers", text, "a JSON array of layers");
  const std::string expected = ReadLayerList(list, layer_count, header.layers);
  return expected.empty() ? absl::OkStatus() : InvalidEntry("layers", text, expected);
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
  if (!header.lease.empty()) {
    json["lease"] = header.lease;
    json["lease_grace_s"] = absl::ToDoubleSeconds(header.lease_grace);
  }
  return Dump(json);
}

absl::Status ParseOwner(const std::string& text, int32_t layer_count, SessionHeader& header) {
  const Json json = Parse(text);
  const auto invalid = [&text](std::string_view expected) { return InvalidEntry("owner", text, expected); };
  for (const auto& [field, member] :
       {std::pair{"principal", &SessionHeader::principal}, std::pair{"id", &SessionHeader::id},
        std::pair{"affinity", &SessionHeader::affinity}}) {
    const auto value = TextField(json, field);
    if (!value.has_value()) return invalid(StrCat("a JSON object with the text '", field, "'"));
    header.*member = *value;
  }
  if ((!header.id.empty() && !IsStateId(header.id)) || header.principal.size() > kMostNameBytes ||
      !IsPrintable(header.affinity, kMaxAffinityLength)) {
    return invalid("a principal, an id and an affinity as sessions have them");
  }
  const auto create_time = ParseWallTime(TextField(json, "create_time").value_or(""));
  if (!create_time.has_value()) return invalid("create_time as RFC 3339");
  header.create_time = *create_time;
  const auto age = ParseSeconds(json, "age_s");
  if (!age.has_value() || *age < absl::ZeroDuration() || *age > kMostAge) {
    return invalid("age_s, of at most 1000 years");
  }
  header.born = SteadyNow() - *age;
  const auto idle_ttl = ParseSeconds(json, "idle_ttl_s");
  const auto max_lifetime = ParseSeconds(json, "max_lifetime_s");
  if (idle_ttl.value_or(absl::ZeroDuration()) <= absl::ZeroDuration() ||
      max_lifetime.value_or(absl::ZeroDuration()) <= absl::ZeroDuration()) {
    return invalid("idle_ttl_s and max_lifetime_s above 0, or null");
  }
  header.idle_ttl = *idle_ttl;
  header.max_lifetime = *max_lifetime;
  const auto request = ParseHash(TextField(json, "request"));
  if (!request.has_value()) return invalid("request as 32 hexadecimal digits");
  header.request = *request;
  const auto changes = CountField(json, "changes");
  if (!changes.has_value()) return invalid(StrCat("changes as a number of at most ", kMaxTokenCount));
  header.changes = *changes;
  if (json.contains("prefix_tokens")) {
    const auto tokens = CountField(json, "prefix_tokens");
    if (!tokens.has_value()) return invalid(StrCat("prefix_tokens as a number of at most ", kMaxTokenCount));
    header.prefix_tokens = *tokens;
  }
  if (json.contains("lease")) {
    const auto lease = TextField(json, "lease");
    const auto grace = ParseSeconds(json, "lease_grace_s");
    if (!lease.has_value() || lease->empty() || !IsId(*lease, kMaxSessionIdLength) ||
        grace.value_or(absl::ZeroDuration()) <= absl::ZeroDuration() || *grace > kMostAge) {
      return invalid("lease as an id, and lease_grace_s above 0");
    }
    header.lease = *lease;
    header.lease_grace = *grace;
  }
  const auto layers = json.find("layers");
  if (layers == json.end() || !layers->is_array()) return invalid("an array of layers");
  const std::string expected = ReadLayerList(*layers, layer_count, header.layers);
  return expected.empty() ? absl::OkStatus() : invalid(expected);
}

}  // namespace gdn::state_file
