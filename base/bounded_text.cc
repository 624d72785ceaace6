#include "base/bounded_text.h"

#include "base/string_cat.h"

namespace gdn {
namespace {

bool ContinuesCharacter(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

}  // namespace

std::string BoundedText(std::string_view text, size_t most_bytes) {
  if (text.size() <= most_bytes) return std::string(text);
  constexpr size_t kMarkBytes = 32;  // " [9223372036854775807 bytes] " has 29
  const size_t kept = most_bytes - kMarkBytes;
  // An error says first what was wrong, and last what to do.
  size_t head = kept - kept / 3;
  size_t tail = text.size() - kept / 3;
  while (head > 0 && ContinuesCharacter(text[head])) --head;
  while (tail < text.size() && ContinuesCharacter(text[tail])) ++tail;
  return StrCat(text.substr(0, head), " [", tail - head, " bytes] ", text.substr(tail));
}

std::string NumberRanges(absl::Span<const int64_t> numbers, size_t most_bytes) {
  constexpr std::string_view kCut = "..";
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    std::string part = StrCat(text.empty() ? "" : ",", numbers[i]);
    if (last > i) StrAppend(&part, "-", numbers[last]);
    const size_t room = last + 1 == numbers.size() ? most_bytes : most_bytes - kCut.size();
    if (text.size() + part.size() > room) return StrCat(text, kCut);
    text += part;
    i = last + 1;
  }
  return text;
}

}  // namespace gdn
