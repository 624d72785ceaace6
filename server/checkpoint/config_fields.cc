#include "server/checkpoint/config_fields.h"

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

// Bytes of a value that a message shows. Longer values, such as a list in place of a number, are cut.
constexpr size_t kMaxValueText = 80;

}  // namespace

std::string ConfigValueText(const Json* value) {
  if (value == nullptr) return "missing";
  std::string text = value->dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
  if (text.size() > kMaxValueText) text = text.substr(0, kMaxValueText) + "...";
  return text;
}

absl::Status InvalidConfigField(std::string_view field, std::string_view found, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("config field '", field, "' is ", found, "; expected ", expected),
                   {{"field", std::string(field)}});
}

std::string JoinedNames(absl::Span<const std::string_view> names) {
  std::string text;
  for (const std::string_view name : names) StrAppend(&text, text.empty() ? "" : ", ", name);
  return text;
}

const Json* ConfigFields::Find(std::string_view field) const {
  for (const Json* scope : {text_, &root_}) {
    if (scope == nullptr) continue;
    const auto it = scope->find(std::string(field));
    if (it != scope->end() && !it->is_null()) return &*it;
  }
  return nullptr;
}

bool ConfigFields::IsNull(std::string_view field) const {
  for (const Json* scope : {text_, &root_}) {
    if (scope == nullptr) continue;
    if (const auto it = scope->find(std::string(field)); it != scope->end()) return it->is_null();
  }
  return false;
}

std::vector<std::string> ConfigFields::Names() const {
  std::vector<std::string> names;
  for (const Json* scope : {text_, &root_}) {
    if (scope == nullptr) continue;
    for (const auto& [name, value] : scope->items()) {
      if (!value.is_null()) names.push_back(name);
    }
  }
  return names;
}

absl::StatusOr<int32_t> ConfigFields::Int(std::string_view field, int32_t low, int32_t high) const {
  const Json* value = Find(field);
  const bool in_range = value != nullptr && value->is_number_unsigned() &&
                        value->get<uint64_t>() >= static_cast<uint64_t>(low) &&
                        value->get<uint64_t>() <= static_cast<uint64_t>(high);
  if (in_range) return value->get<int32_t>();
  return Invalid(field, StrCat("an integer in [", low, ", ", high, "]"));
}

absl::StatusOr<float> ConfigFields::Positive(std::string_view field, float end) const {
  const Json* value = Find(field);
  if (value != nullptr && value->is_number()) {
    const float number = static_cast<float>(value->get<double>());
    if (number > 0.0f && number < end) return number;
  }
  return Invalid(field, StrCat("a number above 0 and below ", end));
}

absl::StatusOr<std::optional<float>> ConfigFields::OptionalNumber(std::string_view field, float low, float end) const {
  const Json* value = Find(field);
  if (value == nullptr) return std::nullopt;
  const float number = value->is_number() ? static_cast<float>(value->get<double>()) : end;
  if (number >= low && number < end) return number;
  return Invalid(field, StrCat("a number, at least ", low, " and below ", end));
}

absl::StatusOr<bool> ConfigFields::BoolOr(std::string_view field, bool absent) const {
  const Json* value = Find(field);
  if (value == nullptr) return absent;
  if (value->is_boolean()) return value->get<bool>();
  return Invalid(field, "true or false");
}

absl::Status ConfigFields::Invalid(std::string_view field, std::string_view expected) const {
  return InvalidConfigField(NameOf(field), ConfigValueText(Find(field)), expected);
}

}  // namespace gdn
