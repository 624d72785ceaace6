// A value form converts the text of a flag, or of a value in the --config file, to a value and back.
//
// A form's `read` sets the value and returns "". If the text is wrong, it leaves the value alone and returns what was
// expected: "expected a whole number, 1 .. 64". `print` returns a text that `read` takes.
// Thread safety: plain values and free functions. Ownership: none.
//
//   const ValueForm<int32_t> form = Whole<int32_t>(1, 64);
//   if (const std::string expected = form.read("8", max_draft); !expected.empty()) std::cerr << expected;
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/marshalling.h"
#include "absl/time/time.h"
#include "base/string_cat.h"

namespace gdn {

// The shape of a value in the file. kText: one text. kSwitch: true or false; the flag needs no value on the command
// line. kList: a list, or a map of NAME: VALUE. kQuotaMap: a map of quotas.
enum class ValueShape { kText, kSwitch, kList, kQuotaMap };

template <typename T>
struct ValueForm {
  std::function<std::string(std::string_view text, T& value)> read;
  std::function<std::string(const T& value)> print;
  ValueShape shape = ValueShape::kText;
};

inline constexpr std::string_view kByteCountForm = "a number of bytes such as 1048576, 512KiB, 64MiB or 8GiB";
inline constexpr int64_t kMostBytes = std::numeric_limits<int64_t>::max();

ValueForm<std::string> Text();
ValueForm<bool> Switch();
// A list: elements separated by commas, which no element may contain. "" is the empty list.
ValueForm<std::vector<std::string>> List();
// Pairs of names and values, in order: "a=b,c=d". The first "=" separates them; an element without "=" is a name with
// the value "".
ValueForm<std::vector<std::pair<std::string, std::string>>> Pairs();
// A number of bytes from `low` to `high`, both included: "1048576", "512KiB", "1MiB", "8GiB".
ValueForm<int64_t> Bytes(int64_t low = 0, int64_t high = kMostBytes);
// "auto", which is std::nullopt, or a number of bytes of at least `low`.
ValueForm<std::optional<int64_t>> BytesOrAuto(int64_t low = 0);
ValueForm<absl::Duration> Time(absl::Duration low = absl::ZeroDuration(),
                               absl::Duration high = absl::InfiniteDuration());
// "auto", which is std::nullopt, or a time as of Time.
ValueForm<std::optional<absl::Duration>> TimeOrAuto(absl::Duration low, absl::Duration high);
// A time of 0 or more, such as "30s". The text "0" means never, and is read as absl::InfiniteDuration().
ValueForm<absl::Duration> TimeOrNever();

// Makes a form from functions. `parse` returns false if it refuses the text; `read` then returns `expected` and leaves
// its value alone.
template <typename T>
ValueForm<T> Form(std::string expected, std::function<bool(std::string_view text, T& value)> parse,
                  std::function<std::string(const T& value)> print, ValueShape shape = ValueShape::kText) {
  return {.read = [=](std::string_view text, T& value) -> std::string {
            T read = {};
            if (!parse(text, read)) return expected;
            value = std::move(read);
            return "";
          },
          .print = std::move(print),
          .shape = shape};
}

template <typename T>
bool ParseAsFlag(std::string_view text, T& value) {
  std::string error;
  return absl::ParseFlag(AbslView(text), &value, &error);
}

template <typename T>
ValueForm<T> Whole(T low, T high = std::numeric_limits<T>::max()) {
  return Form<T>(
      StrCat("expected a whole number, ", low, " .. ", high),
      [=](std::string_view text, T& value) { return ParseAsFlag(text, value) && value >= low && value <= high; },
      [](const T& value) { return StrCat(value); });
}

// A form that takes one of a few words, each of which stands for a value. Errors write the word "" as "nothing".
// `print` takes only a value that has a word.
template <typename T>
ValueForm<T> OneOf(std::vector<std::pair<std::string, T>> words) {
  std::string expected = "expected ";
  for (const auto& [word, value] : words) {
    const bool last = &word == &words.back().first;
    expected += StrCat(&word == &words[0].first ? "" : last ? " or " : ", ", word.empty() ? "nothing" : word);
  }
  return Form<T>(
      expected,
      [words](std::string_view text, T& value) {
        const auto found = std::ranges::find(words, text, &std::pair<std::string, T>::first);
        if (found != words.end()) value = found->second;
        return found != words.end();
      },
      [words](const T& value) { return std::ranges::find(words, value, &std::pair<std::string, T>::second)->first; });
}
ValueForm<std::string> OneOf(const std::vector<std::string>& words);

}  // namespace gdn
