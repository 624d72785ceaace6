#include "server/rpc/callers/principal_list.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/files/user_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kDigestDigits = 64;
constexpr double kMostWeight = 1e6;

std::string Sha256(std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_Digest(text.data(), text.size(), digest.data(), &size, EVP_sha256(), nullptr);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size});
}

absl::Status Bad(std::string_view path, std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the file of --principals, '", path, "': ", what,
                          "; expected {\"principals\": [{\"name\": NAME, \"sha256\": [64 hexadecimal digits, ..], "
                          "\"weight\": a number above 0}, ..]}"),
                   {{"field", "principals"}});
}

absl::Status Add(const nlohmann::json& entry, std::string_view path, PrincipalList& list) {
  if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) {
    return Bad(path, "an entry without a name");
  }
  const std::string name = entry["name"].get<std::string>();
  if (name.empty()) return Bad(path, "an entry without a name");
  for (const auto& [key, value] : entry.items()) {
    if (key != "name" && key != "sha256" && key != "weight") return Bad(path, StrCat("'", name, "' has '", key, "'"));
  }
  double weight = 1;
  if (entry.contains("weight")) {
    if (!entry["weight"].is_number()) return Bad(path, StrCat("the weight of '", name, "' is no number"));
    weight = entry["weight"].get<double>();
  }
  if (!(weight > 0 && weight <= kMostWeight)) {
    return Bad(path, StrCat("the weight of '", name, "' is ", weight, ", expected above 0 and at most ", kMostWeight));
  }
  if (!list.weights.emplace(name, weight).second) return Bad(path, StrCat("'", name, "' is there twice"));
  if (!entry.contains("sha256") || !entry["sha256"].is_array() || entry["sha256"].empty()) {
    return Bad(path, StrCat("'", name, "' has no sha256"));
  }
  for (const nlohmann::json& digest : entry["sha256"]) {
    const std::string digits = digest.is_string() ? absl::AsciiStrToLower(digest.get<std::string>()) : "";
    if (digits.size() != kDigestDigits || !std::ranges::all_of(digits, absl::ascii_isxdigit)) {
      return Bad(path, StrCat("a sha256 of '", name, "' is not of 64 hexadecimal digits"));
    }
    const auto [known, is_new] = list.names_by_digest.emplace(digits, name);
    if (!is_new) return Bad(path, StrCat("'", known->second, "' and '", name, "' have the same sha256"));
  }
  return absl::OkStatus();
}

}  // namespace

const std::string* PrincipalList::Find(const std::vector<std::string_view>& fields) const {
  if (names_by_digest.empty()) return nullptr;
  for (const std::string_view field : fields) {
    const auto found = names_by_digest.find(Sha256(field));
    if (found != names_by_digest.end()) return &found->second;
  }
  return nullptr;
}

absl::StatusOr<PrincipalList> ParsePrincipalList(std::string_view text, std::string_view path) {
  const nlohmann::json file = nlohmann::json::parse(text, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (file.is_discarded()) return Bad(path, StrCat("it is no JSON: ", JsonFault(text)));
  if (!file.is_object() || !file.contains("principals") || !file["principals"].is_array()) {
    return Bad(path, "it has no array 'principals'");
  }
  PrincipalList list;
  for (const nlohmann::json& entry : file["principals"]) GDN_RETURN_IF_ERROR(Add(entry, path, list));
  return list;
}

absl::StatusOr<PrincipalList> ReadPrincipalList(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadUserFile(path);
  if (!text.ok()) return Bad(path, StrCat(text.status().message()));
  return ParsePrincipalList(*text, path);
}

}  // namespace gdn
