#include "base/flags/command_flags.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kShown = 100;  // letters of a name or a value in an error

absl::Status UnknownFlag(std::string_view name, const FlagNames& known) {
  std::vector<std::string_view> names;
  for (const auto& [flag, is_switch] : known) names.push_back(flag);
  const std::string nearest = NearestName(name, names);
  return absl::InvalidArgumentError(StrCat("unknown flag --", name.substr(0, kShown),
                                           nearest.empty() ? "" : StrCat("; did you mean --", nearest, "?")));
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

std::string WithDashes(absl::string_view name) { return absl::StrReplaceAll(name, {{"_", "-"}}); }

CommandFlags SplitArguments(const std::vector<std::string>& arguments, const FlagNames& names) {
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
    const std::string name = WithDashes(argument.substr(dashes, equals - dashes));
    const auto flag = names.find(name);
    if (flag == names.end()) {
      const bool has_value = equals < argument.size();
      const auto negated = absl::StartsWith(name, "no") ? names.find(name.substr(2)) : names.end();
      if (!has_value && (name == "help" || name == "h" || name == "version")) {
        (name == "version" ? line.version : line.help) = true;
      } else if (!has_value && negated != names.end() && negated->second) {
        line.values.emplace_back(negated->first, "false");
      } else {
        line.status = UnknownFlag(name, names);
        break;
      }
    } else if (equals < argument.size()) {
      line.values.emplace_back(name, argument.substr(equals + 1));
    } else if (flag->second) {
      line.values.emplace_back(name, "true");
    } else if (i + 1 < arguments.size()) {
      line.values.emplace_back(name, arguments[++i]);
    } else {
      line.status = absl::InvalidArgumentError(StrCat("--", name, " needs a value: --", name, "=VALUE"));
    }
  }
  return line;
}

std::string WrongValue(std::string_view name, std::string_view value, std::string_view expected) {
  double number = 0;
  const bool unit_is_missing = expected.find(kTimeForm) != std::string_view::npos && value.size() < 20 &&
                               absl::SimpleAtod(AbslView(value), &number) && number > 0;
  return StrCat(name, " is '", value.substr(0, kShown), value.size() > kShown ? "..', " : "', ", expected,
                unit_is_missing ? StrCat("; did you mean ", value, "s?") : "");
}

std::string FlagHelp(std::string_view name, std::string_view help, std::string_view value) {
  return absl::StrFormat("  --%-24s %s%s\n", AbslView(name), AbslView(help),
                         value.empty() || value == "false" ? "" : StrCat(" Default: ", value, "."));
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
