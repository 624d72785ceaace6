#include "base/flags/command_flags.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <utility>

#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kShown = 100;  // letters of a name or a value in an error

// By name, with _.
using FlagsByName = std::map<std::string, absl::CommandLineFlag*, std::less<>>;

FlagsByName TakenFlags(TakesFlag takes) {
  FlagsByName flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (takes(*flag)) flags.emplace(std::string(name), flag);
  }
  return flags;
}

absl::CommandLineFlag* Find(const FlagsByName& flags, std::string_view name) {
  const auto found = flags.find(name);
  return found == flags.end() ? nullptr : found->second;
}

// As help and errors have it.
std::string Dashed(std::string_view name) { return absl::StrReplaceAll(AbslView(name), {{"_", "-"}}); }

absl::Status UnknownFlag(std::string_view name, const FlagsByName& flags) {
  std::vector<std::string_view> names;
  for (const auto& [known, flag] : flags) names.push_back(known);
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(StrCat("unknown flag --", Dashed(name.substr(0, kShown)),
                                           nearest.empty() ? "" : StrCat("; did you mean --", Dashed(nearest), "?")));
}

absl::Status SetFlag(absl::CommandLineFlag& flag, const std::string& value) {
  std::string error;
  if (flag.ParseFrom(value, &error)) return absl::OkStatus();
  const std::string_view shown = std::string_view(value).substr(0, kShown);
  return absl::InvalidArgumentError(StrCat("--", Dashed({flag.Name().data(), flag.Name().size()}), " is '", shown,
                                           shown.size() < value.size() ? "..'" : "'", ", ",
                                           ExpectedForm(flag, value, error)));
}

// How many letters must be put in, taken out or changed.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t before = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t changed = before + (a[i] == b[j] ? 0 : 1);
      before = row[j + 1];
      row[j + 1] = std::min({changed, row[j] + 1, row[j + 1] + 1});
    }
  }
  return row.back();
}

}  // namespace

absl::StatusOr<CommandFlags> SetFlags(const std::vector<std::string>& arguments, TakesFlag takes) {
  const FlagsByName flags = TakenFlags(takes);
  CommandFlags line;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    if (argument == "--") {
      line.positional.insert(line.positional.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                             arguments.end());
      break;
    }
    if (!absl::StartsWith(argument, "-") || argument == "-") {
      line.positional.push_back(argument);
      continue;
    }
    const size_t equals = std::min(argument.find('='), argument.size());
    const size_t dashes = absl::StartsWith(argument, "--") ? 2 : 1;
    std::string name = argument.substr(dashes, equals - dashes);
    absl::StrReplaceAll({{"-", "_"}}, &name);
    absl::CommandLineFlag* flag = Find(flags, name);
    if (flag == nullptr && equals == argument.size()) {
      if (name == "help" || name == "h" || name == "version") {
        (name == "version" ? line.version : line.help) = true;
        continue;
      }
      absl::CommandLineFlag* const negated = absl::StartsWith(name, "no") ? Find(flags, name.substr(2)) : nullptr;
      if (negated != nullptr && negated->IsOfType<bool>()) {
        GDN_RETURN_IF_ERROR(SetFlag(*negated, "false"));
        continue;
      }
    }
    if (flag == nullptr) return UnknownFlag(name, flags);
    if (equals < argument.size()) {
      GDN_RETURN_IF_ERROR(SetFlag(*flag, argument.substr(equals + 1)));
    } else if (flag->IsOfType<bool>()) {
      GDN_RETURN_IF_ERROR(SetFlag(*flag, "true"));
    } else if (i + 1 < arguments.size()) {
      GDN_RETURN_IF_ERROR(SetFlag(*flag, arguments[++i]));
    } else {
      return absl::InvalidArgumentError(StrCat("--", Dashed(name), " needs a value: --", Dashed(name), "=VALUE"));
    }
  }
  return line;
}

std::string ExpectedForm(const absl::CommandLineFlag& flag, std::string_view value, std::string_view error) {
  if (flag.IsOfType<bool>()) return "expected true or false";
  if (flag.IsOfType<int32_t>()) return "expected a whole number of 32 bits";
  if (flag.IsOfType<int64_t>()) return "expected a whole number of 64 bits";
  if (flag.IsOfType<uint64_t>()) return "expected a whole number of 64 bits, 0 or more";
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "expected a number";
  if (flag.IsOfType<absl::Duration>()) {
    double number = 0;
    const bool unit_is_missing = value.size() < 20 && absl::SimpleAtod(AbslView(value), &number);
    return StrCat("expected a time with its unit, such as 500ms, 30s or 5m, or 0",
                  unit_is_missing ? StrCat("; did you mean ", value, "s?") : "");
  }
  const size_t expected = error.find("expected");
  return std::string(expected == std::string_view::npos ? error : error.substr(expected));
}

std::string FlagHelp(const absl::CommandLineFlag& flag) {
  const std::string text = flag.DefaultValue();
  return absl::StrFormat("  --%-24s %s%s\n", Dashed({flag.Name().data(), flag.Name().size()}), flag.Help(),
                         text.empty() || text == "false" ? "" : StrCat(" Default: ", text, "."));
}

std::string FlagsHelp(TakesFlag takes) {
  std::string text;
  for (const auto& [name, flag] : TakenFlags(takes)) text += FlagHelp(*flag);
  return text;
}

std::string NearestName(std::string_view name, const std::vector<std::string_view>& names) {
  name = name.substr(0, kShown);
  std::string nearest;
  size_t least = std::max<size_t>(2, name.size() / 3) + 1;
  for (const std::string_view known : names) {
    const size_t distance = EditDistance(name, known);
    if (distance < least) {
      least = distance;
      nearest = known;
    }
  }
  return nearest;
}

}  // namespace gdn
