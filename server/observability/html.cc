#include "server/observability/html.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the size in bytes of the UTF-8 character at the beginning of the text; 0 if there is none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const auto size = static_cast<size_t>(std::countl_one(byte(0)));
  if (size == 0) return 1;
  if (size == 1 || size > 4 || text.size() < size) return 0;
  uint32_t code = byte(0) & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < kLeast[size] || code > 0x10FFFF || surrogate ? 0 : size;
}

void AppendEscaped(std::string_view character, std::string& out) {
  constexpr std::pair<char, std::string_view> kEscapes[] = {
      {'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&quot;"}, {'\'', "&#39;"}};
  const char c = character[0];
  const auto* const escape = std::ranges::find(kEscapes, c, &std::pair<char, std::string_view>::first);
  const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
  out += escape != std::end(kEscapes) ? escape->second : control ? kReplacement : character;
}

// Formats a value below 1000 with three digits.
std::string Short(double value, const char* unit) {
  return absl::StrFormat("%.*f%s", value >= 100 ? 0 : value >= 10 ? 1 : 2, value, unit);
}

}  // namespace

std::string EscapeHtml(std::string_view text) { return EscapeHtml(text, text.size()); }

std::string EscapeHtml(std::string_view text, size_t most) {
  std::string out;
  for (size_t count = 0; !text.empty(); ++count) {
    if (count == most) return out + "…";
    const size_t size = CharacterSize(text);
    AppendEscaped(size == 0 ? kReplacement : text.substr(0, size), out);
    text.remove_prefix(std::max<size_t>(size, 1));
  }
  return out;
}

std::string ShowBytes(int64_t bytes) {
  if (bytes < 1024) return StrCat(bytes, " B");
  auto value = static_cast<double>(bytes);
  constexpr std::array<const char*, 5> kUnits = {" KiB", " MiB", " GiB", " TiB", " PiB"};
  size_t unit = 0;
  for (value /= 1024; value >= 1000 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return Short(value, kUnits[unit]);
}

std::string ShowNumber(double value) {
  if (value >= 1e9) return Short(value / 1e9, " G");
  if (value >= 1e6) return Short(value / 1e6, " M");
  if (value >= 1e4) return Short(value / 1e3, " k");
  return value == std::floor(value) ? absl::StrFormat("%.0f", value) : Short(value, "");
}

std::string ShowDuration(absl::Duration value) {
  const double seconds = absl::ToDoubleSeconds(value);
  if (seconds < 1e-3) return Short(seconds * 1e6, " µs");
  if (seconds < 1) return Short(seconds * 1e3, " ms");
  if (seconds < 120) return Short(seconds, " s");
  const auto minutes = static_cast<int64_t>(seconds / 60);
  if (minutes < 120) return StrCat(minutes, " min");
  const int64_t hours = minutes / 60;
  if (hours < 48) return StrCat(hours, " h ", minutes % 60, " min");
  return StrCat(hours / 24, " d ", hours % 24, " h");
}

}  // namespace gdn
