// Reads fields of the JSON texts in a state file's metadata. For this folder only.
//
// Thread safety: pure functions.
//
//   if (!ReadIntegers(json, "draft_parents", /*least=*/-1, parents)) return InvalidEntry(..);
#pragma once

#include <charconv>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/count_limits.h"
#include "base/hash.h"
#include "kernels/slot_codec.h"
#include "nlohmann/json.hpp"

namespace gdn::state_file {

using Json = nlohmann::json;

inline absl::StatusOr<std::string> Dump(const Json& json) {
  try {
    return json.dump();
  } catch (const Json::exception&) {
    return absl::InvalidArgumentError("a name of the session or a request id is not UTF-8");
  }
}

inline Json Parse(const std::string& text) { return Json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false); }

inline std::optional<int64_t> IntField(const Json& json, const char* field) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(field);
  if (it == json.end() || !it->is_number_unsigned()) return std::nullopt;
  const uint64_t value = it->get<uint64_t>();
  if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
  return static_cast<int64_t>(value);
}

inline std::optional<int64_t> CountField(const Json& json, const char* field) {
  const std::optional<int64_t> value = IntField(json, field);
  return value.has_value() && *value <= kMaxTokenCount ? value : std::nullopt;
}

inline std::optional<std::string> TextField(const Json& json, const char* field) {
  if (!json.is_object()) return std::nullopt;
  const auto it = json.find(field);
  if (it == json.end() || !it->is_string()) return std::nullopt;
  return it->get<std::string>();
}

inline std::optional<Hash128> ParseHash(const std::optional<std::string>& text) {
  if (!text.has_value() || text->size() != 32) return std::nullopt;
  Hash128 hash;
  const char* middle = text->data() + 16;
  std::from_chars(text->data(), middle, hash.high, /*base=*/16);
  std::from_chars(middle, middle + 16, hash.low, /*base=*/16);
  if (hash.ToHex() != *text) return std::nullopt;  // something other than lower-case digits
  return hash;
}

// Appends the integers of the field to `values`. A missing field is OK. False if the field is not an array of at most
// kMaxDraftLimit integers, each in [least, kMaxDraftLimit); some may be appended then.
inline bool ReadIntegers(const Json& json, const char* field, int32_t least, std::vector<int32_t>& values) {
  const auto it = json.find(field);
  if (it == json.end()) return true;
  if (!it->is_array() || it->size() > static_cast<size_t>(kMaxDraftLimit)) return false;
  for (const Json& value : *it) {
    if (!value.is_number_integer()) return false;
    const auto integer = value.get<int64_t>();
    // An unsigned integer above the maximum of int64_t would become negative here.
    if (integer < least || integer >= kMaxDraftLimit || (integer < 0 && value.is_number_unsigned())) return false;
    values.push_back(static_cast<int32_t>(integer));
  }
  return true;
}

}  // namespace gdn::state_file
