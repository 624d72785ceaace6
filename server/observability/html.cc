#include "server/observability/html.h"

#include <array>
#include <cmath>
#include <cstdio>

#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// Returns the size in bytes of the UTF-8 character at the beginning of the text; 0 if there is none.
size_t CharacterSize(std::string_view text) {
  const auto byte = [&text](size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return 1;
  size_t size = 0;
  uint32_t code = 0;
  if ((byte(0) & 0xE0) == 0xC0) {
    size = 2, code = byte(0) & 0x1FU;
  } else if ((byte(0) & 0xF0) == 0xE0) {
    size = 3, code = byte(0) & 0x0FU;
  } else if ((byte(0) & 0xF8) == 0xF0) {
    size = 4, code = byte(0) & 0x07U;
  } else {
    return 0;
  }
  if (text.size() < size) return 0;
  for (size_t i = 1; i < size; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    code = (code << 6) | (byte(i) & 0x3FU);
  }
  constexpr std::array<uint32_t, 5> kLeast = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xD800 && code <= 0xDFFF;
  return code < kLeast[size] || code > 0x10FFFF || surrogate ? 0 : size;
}

void AppendEscaped(std::string_view character, std::string& out) {
  const char c = character[0];
  if (c == '&') {
    out += "&amp;";
  } else if (c == '<') {
    out += "&lt;";
  } else if (c == '>') {
    out += "&gt;";
  } else if (c == '"') {
    out += "&quot;";
  } else if (c == '\'') {
    out += "&#39;";
  } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
    out += kReplacement;
  } else {
    out += character;
  }
}

std::string Format(const char* format, double value, const char* unit) {
  std::array<char, 64> text;
  std::snprintf(text.data(), text.size(), format, value, unit);
  return text.data();
}

// Formats a value below 1000 with three digits.
std::string Short(double value, const char* unit) {
  return Format(value >= 100 ? "%.0f%s" : value >= 10 ? "%.1f%s" : "%.2f%s", value, unit);
}

}  // namespace

std::string EscapeHtml(std::string_view text) { return EscapeHtml(text, text.size()); }

std::string EscapeHtml(std::string_view text, size_t most) {
  std::string out;
  for (size_t count = 0; !text.empty(); ++count) {
    if (count == most) return out + "…";
    const size_t size = CharacterSize(text);
    if (size == 0) {
      out += kReplacement;
    } else {
      AppendEscaped(text.substr(0, size), out);
    }
    text.remove_prefix(size == 0 ? 1 : size);
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
  return value == std::floor(value) ? Format("%.0f%s", value, "") : Short(value, "");
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
