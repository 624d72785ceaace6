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
  return InvalidConfigField(NameOf(field), ConfigValueText(value), StrCat("an integer in [", low, ", ", high, "]"));
}

absl::StatusOr<float> ConfigFields::Positive(std::string_view field, float end) const {
  const Json* value = Find(field);
  if (value != nullptr && value->is_number()) {
    const float number = static_cast<float>(value->get<double>());
    if (number > 0.0f && number < end) return number;
  }
  return InvalidConfigField(NameOf(field), ConfigValueText(value), StrCat("a number above 0 and below ", end));
}

absl::StatusOr<float> ConfigFields::Number(std::string_view field, float low, float end) const {
  const Json* value = Find(field);
  if (value != nullptr && value->is_number()) {
    const float number = static_cast<float>(value->get<double>());
    if (number >= low && number < end) return number;
  }
  return InvalidConfigField(NameOf(field), ConfigValueText(value),
                            StrCat("a number, at least ", low, " and below ", end));
}

absl::StatusOr<bool> ConfigFields::Bool(std::string_view field) const {
  const Json* value = Find(field);
  if (value != nullptr && value->is_boolean()) return value->get<bool>();
  return InvalidConfigField(NameOf(field), ConfigValueText(value), "true or false");
}

}  // namespace gdn
