#include "server/config/quota_section.h"

#include <algorithm>
#include <map>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/time/time.h"
#include "base/string_cat.h"
#include "server/admission/token_bucket.h"

namespace gdn {
namespace {

constexpr std::string_view kNone = "none";
constexpr std::string_view kWeight = "weight";
constexpr double kMostWeight = 1e6;
constexpr int64_t kMostCount = 1'000'000'000;
constexpr size_t kMostNameBytes = 256;
constexpr std::string_view kUnderDefault = "it under `default`, because it is a limit of each session";

// The text form of a limit. `of_all`: says what a user sets instead of the limit under `all`, for an error message; ""
// if `all` can set the limit.
struct QuotaRule {
  ValueForm<int64_t> form;
  std::string_view of_all = "";
};

// The form of a time above 0, stored in nanoseconds.
ValueForm<int64_t> Nanoseconds() {
  return Form<int64_t>(
      "expected a time above 0 such as 30m or 24h",
      [](std::string_view text, int64_t& value) {
        absl::Duration time;
        if (!absl::ParseDuration(AbslView(text), &time)) return false;
        value = absl::ToInt64Nanoseconds(time);
        return value > 0 && value != kNoQuota;
      },
      [](const int64_t& value) { return absl::FormatDuration(absl::Nanoseconds(value)); });
}

const QuotaRule& RuleOf(Quota quota) {
  static const auto* const rules =
      new std::map<Quota, QuotaRule>{{Quota::kSessions, {Whole<int64_t>(0, kMostCount)}},
                                     {Quota::kCheckpoints, {Whole<int64_t>(0, kMostCount)}},
                                     {Quota::kStateBytes, {Bytes()}},
                                     {Quota::kDeviceBytes, {Bytes(), "--device-state-bytes"}},
                                     {Quota::kHostBytes, {Bytes(), "--host-state-bytes"}},
                                     {Quota::kDiskBytes, {Bytes(), "--disk-state-bytes"}},
                                     {Quota::kRedisBytes, {Bytes(), "maxmemory of Redis itself"}},
                                     {Quota::kCallBytes, {Bytes()}},
                                     {Quota::kCopyBytes, {Bytes()}},
                                     {Quota::kTokensPerSecond, {Whole<int64_t>(1, kMostTokens)}},
                                     {Quota::kTokenBurst, {Whole<int64_t>(1, kMostTokens)}},
                                     {Quota::kIdleTtl, {Nanoseconds(), kUnderDefault}},
                                     {Quota::kMaxLifetime, {Nanoseconds(), kUnderDefault}}};
  return rules->at(quota);
}

class Reader {
 public:
  explicit Reader(std::vector<ConfigFault>& faults) : faults_(faults) {}

  QuotaSettings Read(const YamlNode& section) {
    QuotaSettings settings;
    const YamlNode* principals = nullptr;
    // Principals start from `default`, which may stand behind them in the file. So they are read last.
    for (const auto& [key, at, value] : Entries(section, "quotas", {"all", "default", "principals"})) {
      if (key == "principals") principals = value;
      if (key == "all") ReadLimits(*value, "all", Of::kAll, settings.all, nullptr);
      if (key == "default") ReadLimits(*value, "default", Of::kEach, settings.each, nullptr);
    }
    if (principals != nullptr) ReadPrincipals(*principals, settings);
    return settings;
  }

 private:
  enum class Of { kAll, kEach, kPrincipal };

  void Fault(const YamlNode& node, std::string what) { faults_.push_back({node.place, std::move(what)}); }

  std::vector<YamlEntry> Entries(const YamlNode& node, std::string_view where,
                                 const std::vector<std::string_view>& known) {
    const std::vector<std::string> names(known.begin(), known.end());
    return MapEntries(node, where, known, absl::StrJoin(names, ", "), faults_);
  }

  void ReadPrincipals(const YamlNode& node, QuotaSettings& settings) {
    for (const auto& [name, at, value] : Entries(node, "principals", {})) {
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
    for (const auto& [key, at, value] : Entries(node, where, known)) {
      if (key == kWeight) {
        ReadWeight(*value, where, *weight);
        continue;
      }
      const auto quota = static_cast<Quota>(std::ranges::find(kQuotaNames, key) - kQuotaNames.begin());
      if (quota == Quota::kTokenBurst) burst = value;
      if (const std::string_view instead = RuleOf(quota).of_all; of == Of::kAll && !instead.empty()) {
        Fault(*value, StrCat(key, " cannot be set under `all`; set ", instead));
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
    const bool is_text = node.kind == YamlKind::kScalar;
    int64_t value = kNoQuota;
    const std::string expected = is_text && node.text == kNone ? "" : RuleOf(quota).form.read(node.text, value);
    if (is_text && expected.empty()) {
      limits[quota] = value;
      return;
    }
    Fault(node, StrCat(key,
                       is_text ? StrCat(" is '", node.text.substr(0, kMostShownLetters), "'")
                               : std::string(node.kind == YamlKind::kNothing ? " has no value" : " is a list"),
                       ", ", expected, ", or none"));
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
    // A burst has no meaning without a rate, and is not printed.
    if (quota == Quota::kTokenBurst && limits[Quota::kTokensPerSecond] == kNoQuota) continue;
    parts.push_back(
        StrCat(kQuotaNames[i], ": ", value == kNoQuota ? std::string(kNone) : RuleOf(quota).form.print(value)));
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

ValueForm<QuotaSettings> Quotas() {
  return {.read = [](std::string_view text, QuotaSettings& quotas) -> std::string {
            std::vector<ConfigFault> faults;
            QuotaSettings read = ParseQuotas(text, faults);
            if (!faults.empty()) {
              return StrCat("expected quotas as docs/how-to/configure.md has them: ", faults.front().what);
            }
            quotas = std::move(read);
            return "";
          },
          .print = PrintQuotas,
          .shape = ValueShape::kQuotaMap};
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
