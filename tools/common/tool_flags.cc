#include "tools/common/tool_flags.h"

#include <cstdint>
#include <map>

#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

using FlagsByName = std::map<std::string, absl::CommandLineFlag*>;  // with -

FlagsByName TakenFlags(TakesFlag takes) {
  FlagsByName flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (takes(*flag)) flags.emplace(WithDashes(name), flag);
  }
  return flags;
}

// The form of value that a flag takes; `error` is what its parser said of another.
std::string ExpectedForm(const absl::CommandLineFlag& flag, const std::string& error) {
  if (flag.IsOfType<bool>()) return "expected true or false";
  if (flag.IsOfType<int32_t>()) return "expected a whole number of 32 bits";
  if (flag.IsOfType<int64_t>()) return "expected a whole number of 64 bits";
  if (flag.IsOfType<uint64_t>()) return "expected a whole number of 64 bits, 0 or more";
  if (flag.IsOfType<double>() || flag.IsOfType<float>()) return "expected a number";
  return flag.IsOfType<absl::Duration>() ? StrCat("expected ", kTimeForm, ", or 0") : error;
}

}  // namespace

absl::StatusOr<CommandFlags> SetFlags(const std::vector<std::string>& arguments, TakesFlag takes) {
  const FlagsByName flags = TakenFlags(takes);
  FlagNames names;
  for (const auto& [name, flag] : flags) names.emplace(name, flag->IsOfType<bool>());
  CommandFlags line = SplitArguments(arguments, names);
  for (const auto& [name, value] : line.values) {
    std::string error;
    absl::CommandLineFlag& flag = *flags.at(name);
    if (flag.ParseFrom(value, &error)) continue;
    return absl::InvalidArgumentError(StrCat("--", WrongValue(name, value, ExpectedForm(flag, error))));
  }
  GDN_RETURN_IF_ERROR(line.status);
  return line;
}

std::string FlagHelp(const absl::CommandLineFlag& flag) {
  return FlagHelp(WithDashes(flag.Name()), flag.Help(), flag.DefaultValue());
}

std::string FlagsHelp(TakesFlag takes) {
  std::string text;
  for (const auto& [name, flag] : TakenFlags(takes)) text += FlagHelp(*flag);
  return text;
}

}  // namespace gdn
