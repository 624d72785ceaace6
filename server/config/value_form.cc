#include "server/config/value_form.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/flags/command_flags.h"

namespace gdn {
namespace {

// Returns false if `text` is not a number of bytes.
bool ParseBytes(std::string_view text, int64_t& bytes) {
  absl::string_view number = AbslView(text);
  int64_t unit = 1;
  for (const auto& [suffix, size] :
       {std::pair<absl::string_view, int64_t>{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}}) {
    if (absl::ConsumeSuffix(&number, suffix)) {
      unit = size;
      break;
    }
  }
  if (!absl::SimpleAtoi(number, &bytes) || bytes < 0 || bytes > kMostBytes / unit) return false;
  bytes *= unit;
  return true;
}

// The form, or "auto", which is std::nullopt.
template <typename T>
ValueForm<std::optional<T>> OrAuto(ValueForm<T> form) {
  return {.read =
              [form](std::string_view text, std::optional<T>& value) {
                T given = {};
                std::string expected = text == "auto" ? "" : form.read(text, given);
                if (expected.empty()) value = text == "auto" ? std::nullopt : std::optional<T>(given);
                return expected;
              },
          .print = [form](const std::optional<T>& value) { return value.has_value() ? form.print(*value) : "auto"; }};
}

}  // namespace

ValueForm<std::string> Text() {
  return Form<std::string>("", ParseAsFlag<std::string>, [](const std::string& value) { return value; });
}

ValueForm<bool> Switch() {
  return Form<bool>(
      "expected true or false", ParseAsFlag<bool>, [](const bool& value) { return value ? "true" : "false"; },
      ValueShape::kSwitch);
}

ValueForm<std::vector<std::string>> List() {
  using Values = std::vector<std::string>;
  return Form<Values>(
      "", ParseAsFlag<Values>, [](const Values& values) { return absl::StrJoin(values, ","); }, ValueShape::kList);
}

ValueForm<std::vector<std::pair<std::string, std::string>>> Pairs() {
  using Values = std::vector<std::pair<std::string, std::string>>;
  return Form<Values>(
      "",
      [](std::string_view text, Values& values) {
        std::vector<std::string> elements;
        ParseAsFlag(text, elements);
        for (const std::string& element : elements) values.push_back(absl::StrSplit(element, absl::MaxSplits('=', 1)));
        return true;
      },
      [](const Values& values) { return absl::StrJoin(values, ",", absl::PairFormatter("=")); }, ValueShape::kList);
}

ValueForm<int64_t> Bytes(int64_t low, int64_t high) {
  const std::string more = high < kMostBytes ? StrCat(" .. ", high) : " or more";
  const std::string bounds = low > 0 || high < kMostBytes ? StrCat("; ", low, more) : "";
  return Form<int64_t>(
      StrCat("expected ", kByteCountForm, bounds),
      [=](std::string_view text, int64_t& value) { return ParseBytes(text, value) && value >= low && value <= high; },
      [](const int64_t& value) { return StrCat(value); });
}

ValueForm<std::optional<int64_t>> BytesOrAuto(int64_t low) { return OrAuto(Bytes(low)); }

ValueForm<std::optional<absl::Duration>> TimeOrAuto(absl::Duration low, absl::Duration high) {
  return OrAuto(Time(low, high));
}

ValueForm<absl::Duration> Time(absl::Duration low, absl::Duration high) {
  const std::string more = high == absl::InfiniteDuration() ? " or more" : StrCat(" .. ", absl::FormatDuration(high));
  const std::string bounds = low > absl::ZeroDuration() ? StrCat("; ", absl::FormatDuration(low), more) : ", or 0";
  return Form<absl::Duration>(
      StrCat("expected ", kTimeForm, bounds),
      [=](std::string_view text, absl::Duration& value) {
        return absl::ParseDuration(AbslView(text), &value) && value >= low && value <= high;
      },
      absl::FormatDuration);
}

ValueForm<absl::Duration> TimeOrNever() {
  return {.read =
              [](std::string_view text, absl::Duration& value) {
                std::string expected = Time().read(text, value);
                if (value == absl::ZeroDuration()) value = absl::InfiniteDuration();
                return expected;
              },
          .print =
              [](const absl::Duration& value) {
                return absl::FormatDuration(value == absl::InfiniteDuration() ? absl::ZeroDuration() : value);
              }};
}

ValueForm<std::string> OneOf(const std::vector<std::string>& words) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const std::string& word : words) pairs.emplace_back(word, word);
  return OneOf<std::string>(std::move(pairs));
}

}  // namespace gdn
