// Reads fields of a Hugging Face config.json. If the config has a nested part "text_config", that part's fields go
// first.
//
// A field that is null counts as absent, because transformers writes null for "not set". Every refusal is
// INVALID_ARGUMENT (INVALID_SPEC) and names the field, its value and what was expected.
// Thread safety: constant. Ownership: borrows the JSON.
//
//   const ConfigFields fields(root, text);
//   GDN_ASSIGN_OR_RETURN(dims.hidden_size, fields.Int("hidden_size", 1, kMaxHiddenSize));
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "nlohmann/json.hpp"

namespace gdn {

class ConfigFields {
 public:
  // The fields of a whole config. `text`: its nested part "text_config", whose fields go first, or null. Both are
  // borrowed.
  ConfigFields(const nlohmann::json& root, const nlohmann::json* text) : root_(root), text_(text) {}
  // The fields of an object inside a config, which is borrowed. Refusals put `name` before a field:
  // "linear_attn_config.head_dim".
  ConfigFields(std::string_view name, const nlohmann::json& object)
      : root_(object), text_(nullptr), prefix_(std::string(name) + ".") {}

  const nlohmann::json* Find(std::string_view field) const;  // nullptr if it is absent or null; else borrowed
  bool Has(std::string_view field) const { return Find(field) != nullptr; }
  // Returns true if the field is there with the value null. If both parts have it, the part that goes first decides.
  bool IsNull(std::string_view field) const;
  // Returns the names of all fields that are not null, without a prefix. A name that both parts have comes twice.
  std::vector<std::string> Names() const;
  std::string NameOf(std::string_view field) const {
    return prefix_ + std::string(field);
  }  // the field's name in refusals

  // Returns the field's integer, which must be between `low` (0 or more) and `high`, both included. The error of
  // Invalid if it is not, or if the field is absent.
  absl::StatusOr<int32_t> Int(std::string_view field, int32_t low, int32_t high) const;
  // Returns the field's number, which must be above 0 and below `end`. The error of Invalid if it is not, or if the
  // field is absent.
  absl::StatusOr<float> Positive(std::string_view field, float end) const;
  // Returns the field's number, which must be at least `low` and below `end`; nullopt if the field is absent or null.
  // Otherwise the error of Invalid.
  absl::StatusOr<std::optional<float>> OptionalNumber(std::string_view field, float low, float end) const;
  // Returns the field as a bool; `absent` if there is no such field or it is null. The error of Invalid for any value
  // but true and false.
  absl::StatusOr<bool> BoolOr(std::string_view field, bool absent) const;

  // Makes the error INVALID_ARGUMENT (INVALID_SPEC: field) that refuses the field's value, which may be missing.
  absl::Status Invalid(std::string_view field, std::string_view expected) const;

 private:
  const nlohmann::json& root_;
  const nlohmann::json* text_;
  std::string prefix_;
};

// Returns a field's value as JSON for a message, cut after 80 bytes; "missing" for nullptr.
std::string ConfigValueText(const nlohmann::json* value);

absl::Status InvalidConfigField(std::string_view field, std::string_view found, std::string_view expected);

// Returns the names with ", " between them: "a, b, c".
std::string JoinedNames(absl::Span<const std::string_view> names);

}  // namespace gdn
