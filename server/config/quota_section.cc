#include "server/config/quota_section.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/flags/command_flags.h"
#include "base/string_cat.h"
#include "server/admission/token_bucket.h"
#include "server/config/byte_count.h"

namespace gdn {
namespace {

constexpr std::string_view kNone = "none";
constexpr std::string_view kWeight = "weight";
constexpr double kMostWeight = 1e6;
constexpr int64_t kMostCount = 1'000'000'000;
constexpr size_t kMostNameBytes = 256;

enum class Unit { kCount, kBytes, kTokens, kTime };

Unit UnitOf(Quota quota) {
  switch (quota) {
    case Quota::kSessions:
    case Quota::kCheckpoints:
      return Unit::kCount;
    case Quota::kTokensPerSecond:
    case Quota::kTokenBurst:
      return Unit::kTokens;
    case Quota::kIdleTtl:
    case Quota::kMaxLifetime:
      return Unit::kTime;
    default:
      return Unit::kBytes;
  }
}

// Why all callers together cannot have it; "" where they can.
std::string_view NotOfAll(Quota quota) {
  switch (quota) {
    case Quota::kDeviceBytes:
      return "--device-state-bytes";
    case Quota::kHostBytes:
      return "--host-state-bytes";
    case Quota::kDiskBytes:
      return "--disk-state-bytes";
    case Quota::kRedisBytes:
      return "Redis itself (maxmemory)";
    case Quota::kIdleTtl:
    case Quota::kMaxLifetime:
      return "default, for it is of each session";
    default:
      return "";
  }
}

std::string Join(const std::vector<std::string_view>& names) {
  return absl::StrJoin(std::vector<std::string>(names.begin(), names.end()), ", ");
}

class Reader {
 public:
  explicit Reader(std::vector<ConfigFault>& faults) : faults_(faults) {}

  QuotaSettings Read(const YamlNode& section) {
    QuotaSettings settings;
    const YamlNode* principals = nullptr;
    // What `principals` go on from may stand behind them.
    for (const auto& [key, value] : Entries(section, "quotas", {"all", "default", "principals"})) {
      if (key == "principals") principals = value;
      if (key == "all") ReadLimits(*value, "all", Of::kAll, settings.all, nullptr);
      if (key == "default") ReadLimits(*value, "default", Of::kEach, settings.each, nullptr);
    }
    if (principals != nullptr) ReadPrincipals(*principals, settings);
    return settings;
  }

 private:
  enum class Of { kAll, kEach, kPrincipal };
  using Fields = std::vector<std::pair<std::string, const YamlNode*>>;

  void Fault(const YamlNode& node, std::string what) { faults_.push_back({node.place, std::move(what)}); }

  // A map's entries, each once, whose keys are of `known` (none: any).
  Fields Entries(const YamlNode& node, std::string_view where, const std::vector<std::string_view>& known) {
    Fields entries;
    if (node.kind != YamlKind::kMap) {
      Fault(node, StrCat(where, " is no map, expected lines of KEY: VALUE"));
      return entries;
    }
    std::map<std::string, int> seen;
    for (size_t i = 0; i + 1 < node.children.size(); i += 2) {
      const YamlNode& key = node.children[i];
      std::string name = key.text;
      if (!known.empty()) std::ranges::replace(name, '_', '-');
      if (key.kind != YamlKind::kScalar) {
        Fault(key, StrCat("a key of ", where, " that is no text"));
      } else if (!known.empty() && std::ranges::find(known, std::string_view(name)) == known.end()) {
        const std::string nearest = NearestName(name, known);
        Fault(key, StrCat("unknown key '", key.text.substr(0, kMostShownLetters), "' in ", where, ", ",
                          nearest.empty() ? StrCat("expected ", Join(known))
                                          : StrCat("did you mean '", nearest, "'?")));
      } else if (const auto [first, is_new] = seen.emplace(name, key.place.line); !is_new) {
        Fault(key, StrCat("'", name, "' stands twice in ", where, ", first in line ", first->second));
      } else {
        entries.emplace_back(std::move(name), &node.children[i + 1]);
      }
    }
    return entries;
  }

  void ReadPrincipals(const YamlNode& node, QuotaSettings& settings) {
    for (const auto& [name, value] : Entries(node, "principals", {})) {
      const bool printable = std::ranges::none_of(name, [](char c) { return absl::ascii_iscntrl(c); });
      if (name.empty() || name.size() > kMostNameBytes || !printable) {
        Fault(*value, StrCat("a principal's name is of 1 to ", kMostNameBytes, " bytes without control characters"));
        continue;
      }
      PrincipalQuotas quotas{.limits = settings.each, .weight = std::nullopt};
      ReadLimits(*value, StrCat("'", name, "'"), Of::kPrincipal, quotas.limits, &quotas.weight);
      settings.principals.emplace(name, quotas);
    }
  }

  void ReadLimits(const YamlNode& node, const std::string& where, Of of, QuotaLimits& limits,
                  std::optional<double>* weight) {
    std::vector<std::string_view> known(kQuotaNames.begin(), kQuotaNames.end());
    if (weight != nullptr) known.push_back(kWeight);
    const YamlNode* burst = nullptr;
    for (const auto& [key, value] : Entries(node, where, known)) {
      if (key == kWeight) {
        ReadWeight(*value, where, *weight);
        continue;
      }
      const auto quota = static_cast<Quota>(std::ranges::find(kQuotaNames, key) - kQuotaNames.begin());
      if (quota == Quota::kTokenBurst) burst = value;
      if (const std::string_view instead = NotOfAll(quota); of == Of::kAll && !instead.empty()) {
        Fault(*value, StrCat(key, " cannot be of all together; set it by ", instead));
        continue;
      }
      ReadLimit(*value, key, quota, limits);
    }
    if (burst != nullptr && limits[Quota::kTokenBurst] != kNoQuota && limits[Quota::kTokensPerSecond] == kNoQuota) {
      Fault(*burst, StrCat("token-burst of ", where, " is given without tokens-per-second, expected both"));
    }
    if (limits[Quota::kTokensPerSecond] == kNoQuota) limits[Quota::kTokenBurst] = kNoQuota;
  }

  void ReadWeight(const YamlNode& node, const std::string& where, std::optional<double>& weight) {
    double value = 0;
    if (node.kind != YamlKind::kScalar || !absl::SimpleAtod(node.text, &value) ||
        !(value > 0 && value <= kMostWeight)) {
      return Fault(node, StrCat("weight of ", where, " is '", node.text.substr(0, kMostShownLetters),
                                "', expected a number above 0, at most ", kMostWeight));
    }
    weight = value;
  }

  void ReadLimit(const YamlNode& node, const std::string& key, Quota quota, QuotaLimits& limits) {
    int64_t value = 0;
    if (node.kind == YamlKind::kScalar) {
      if (node.text == kNone) {
        limits[quota] = kNoQuota;
        return;
      }
      if (ParseLimit(node.text, UnitOf(quota), &value)) {
        limits[quota] = value;
        return;
      }
    }
    Fault(node, StrCat(key,
                       node.kind == YamlKind::kScalar
                           ? StrCat(" is '", node.text.substr(0, kMostShownLetters), "'")
                           : std::string(node.kind == YamlKind::kNothing ? " has no value" : " is a list"),
                       ", expected ", Form(UnitOf(quota)), ", or none"));
  }

  static std::string Form(Unit unit) {
    switch (unit) {
      case Unit::kCount:
        return StrCat("a whole number, 0 .. ", kMostCount);
      case Unit::kTokens:
        return StrCat("a whole number of tokens, 1 .. ", kMostTokens);
      case Unit::kTime:
        return "a time above 0 such as 30m or 24h";
      case Unit::kBytes:
        return std::string(kByteCountForm);
    }
    return "";
  }

  static bool ParseLimit(const std::string& text, Unit unit, int64_t* value) {
    switch (unit) {
      case Unit::kBytes:
        return ParseByteCount(text, value) && *value != kNoQuota;
      case Unit::kCount:
        return absl::SimpleAtoi(text, value) && *value >= 0 && *value <= kMostCount;
      case Unit::kTokens:
        return absl::SimpleAtoi(text, value) && *value >= 1 && *value <= kMostTokens;
      case Unit::kTime: {
        absl::Duration time;
        if (!absl::ParseDuration(text, &time)) return false;
        *value = absl::ToInt64Nanoseconds(time);
        return *value > 0 && *value != kNoQuota;
      }
    }
    return false;
  }

  std::vector<ConfigFault>& faults_;
};

std::string PrintLimits(const QuotaLimits& limits, const QuotaLimits& from, const std::optional<double>& weight) {
  std::vector<std::string> parts;
  if (weight.has_value()) parts.push_back(absl::StrFormat("weight: %.17g", *weight));
  for (size_t i = 0; i < kQuotas; ++i) {
    const auto quota = static_cast<Quota>(i);
    const int64_t value = limits[quota];
    if (value == from[quota]) continue;
    // Without a rate there is no burst either.
    if (quota == Quota::kTokenBurst && limits[Quota::kTokensPerSecond] == kNoQuota) continue;
    parts.push_back(StrCat(kQuotaNames[i], ": ",
                           value == kNoQuota              ? std::string(kNone)
                           : UnitOf(quota) == Unit::kTime ? absl::FormatDuration(absl::Nanoseconds(value))
                                                          : StrCat(value)));
  }
  return StrCat("{", absl::StrJoin(parts, ", "), "}");
}

}  // namespace

QuotaSettings ReadQuotas(const YamlNode& section, std::vector<ConfigFault>& faults) {
  return Reader(faults).Read(section);
}

QuotaSettings ParseQuotas(std::string_view text, std::vector<ConfigFault>& faults) {
  const std::optional<YamlNode> root = ParseYaml(text, faults);
  if (!root.has_value() || root->kind == YamlKind::kNothing) return {};
  return ReadQuotas(*root, faults);
}

std::string PrintQuotas(const QuotaSettings& quotas) {
  if (quotas == QuotaSettings()) return "";
  std::vector<std::string> parts;
  const QuotaLimits none;
  if (quotas.all != none) parts.push_back(StrCat("all: ", PrintLimits(quotas.all, none, std::nullopt)));
  if (quotas.each != none) parts.push_back(StrCat("default: ", PrintLimits(quotas.each, none, std::nullopt)));
  std::vector<std::string> principals;
  for (const auto& [name, own] : quotas.principals) {
    principals.push_back(
        StrCat("'", absl::StrReplaceAll(name, {{"'", "''"}}), "': ", PrintLimits(own.limits, quotas.each, own.weight)));
  }
  if (!principals.empty()) parts.push_back(StrCat("principals: {", absl::StrJoin(principals, ", "), "}"));
  return StrCat("{", absl::StrJoin(parts, ", "), "}");
}

}  // namespace gdn
