#include "base/files/json_fault.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/ascii.h"
#include "base/name_rules.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr size_t kShownFaultBytes = 200;

// Keeps the first error of the parser and takes nothing of what it reads.
class FaultReader final : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool /*value*/) override { return true; }
  bool number_integer(number_integer_t /*value*/) override { return true; }
  bool number_unsigned(number_unsigned_t /*value*/) override { return true; }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return true; }
  bool string(string_t& /*text*/) override { return true; }
  bool binary(binary_t& /*value*/) override { return true; }
  bool start_object(size_t /*elements*/) override { return true; }
  bool key(string_t& /*key*/) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t /*elements*/) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& error) override {
    byte = position;
    message = error.what();
    return false;
  }

  size_t byte = 0;  // one past the byte that is wrong
  std::string message;
};

// The library's message without its own place and number, and without what it has read: that may be a secret.
std::string Bare(std::string message) {
  const size_t error = message.find("error");
  const size_t colon = error == std::string::npos ? error : message.find(": ", error);
  if (colon != std::string::npos) message.erase(0, colon + 2);
  const size_t read = message.find("; last read: '");
  if (read == std::string::npos) return message;
  const size_t end = message.rfind("'; expected ");
  return message.erase(read, end == std::string::npos || end < read ? std::string::npos : end + 1 - read);
}

bool IsWordLetter(char c) { return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_'; }

// The word that the text begins with, of those that Python's json writes for numbers without digits; "": none.
std::string_view NonFiniteAt(std::string_view text) {
  for (const std::string_view word : {"NaN", "Infinity", "-Infinity"}) {
    if (text.starts_with(word) && (text.size() == word.size() || !IsWordLetter(text[word.size()]))) return word;
  }
  return {};
}

}  // namespace

bool IsLfsPointer(std::string_view bytes) { return bytes.starts_with("version https://git-lfs.github.com/spec/"); }

std::string JsonFault(std::string_view text) {
  if (IsLfsPointer(text)) return std::string(kFetchLfsFile);
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) return "it is empty";
  const bool has_mark = text.starts_with("\xff\xfe") || text.starts_with("\xfe\xff");
  if (has_mark || text.substr(0, 4).find('\0') != std::string_view::npos) {
    return "it is UTF-16 or UTF-32 text, expected UTF-8; iconv -f UTF-16 -t UTF-8 converts it";
  }
  FaultReader reader;
  if (Json::sax_parse(text.begin(), text.end(), &reader)) return "";
  const size_t at = std::min(reader.byte > 0 ? reader.byte - 1 : 0, text.size());
  const std::string_view before = text.substr(0, at);
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const size_t column = at - (before.rfind('\n') + 1) + 1;
  const std::string_view rest = text.substr(at > 0 && at < text.size() && text[at - 1] == '/' ? at - 1 : at);
  const bool comment = rest.starts_with("//") || rest.starts_with("/*") || rest.starts_with("#");
  return StrCat(
      "line ", line, ", column ", column, ": ",
      comment ? "a comment, which JSON does not have; remove it" : Shown(Bare(reader.message), kShownFaultBytes));
}

std::string QuoteNonFinite(std::string_view text) {
  std::string quoted;
  quoted.reserve(text.size());
  bool in_string = false;
  for (size_t i = 0; i < text.size();) {
    if (in_string && text[i] == '\\' && i + 1 < text.size()) {
      quoted += text.substr(i, 2);
      i += 2;
      continue;
    }
    if (text[i] == '"') in_string = !in_string;
    const bool may_begin = !in_string && (i == 0 || !IsWordLetter(text[i - 1]));
    const std::string_view word = may_begin ? NonFiniteAt(text.substr(i)) : std::string_view();
    if (word.empty()) {
      quoted += text[i++];
    } else {
      StrAppend(&quoted, "\"", word, "\"");
      i += word.size();
    }
  }
  return quoted;
}

}  // namespace gdn
