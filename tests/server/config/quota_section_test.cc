// `quotas` of a file of flags, good ones and every kind of bad one.
#include "server/config/quota_section.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/str_join.h"

namespace gdn::quota_section_test {
namespace {

QuotaSettings Parsed(const std::string& text) {
  std::vector<ConfigFault> faults;
  QuotaSettings settings = ParseQuotas(text, faults);
  EXPECT_TRUE(faults.empty()) << text << ": " << faults[0].ToString("f");
  return settings;
}

std::vector<std::string> FaultsOf(const std::string& text) {
  std::vector<ConfigFault> faults;
  ParseQuotas(text, faults);
  std::vector<std::string> lines;
  for (const ConfigFault& fault : faults) lines.push_back(fault.ToString("f"));
  return lines;
}

std::string AllKeys() {
  const std::vector<std::string> names(kQuotaNames.begin(), kQuotaNames.end());
  return absl::StrJoin(names, ", ");
}

TEST(QuotaSection, ReadsLimitsOfEveryUnit) {
  const QuotaSettings settings = Parsed(
      "all:\n  sessions: 5000\n  state-bytes: 64GiB\n"
      "default:\n  tokens_per_second: 2000\n  token-burst: 4096\n  call-bytes: 1048576\n  idle-ttl: 1h30m\n"
      "  checkpoints: 0\n");
  EXPECT_EQ(settings.all[Quota::kSessions], 5000);
  EXPECT_EQ(settings.all[Quota::kStateBytes], int64_t{64} << 30);
  EXPECT_EQ(settings.all[Quota::kTokensPerSecond], kNoQuota);
  EXPECT_EQ(settings.each[Quota::kTokensPerSecond], 2000);
  EXPECT_EQ(settings.each[Quota::kTokenBurst], 4096);
  EXPECT_EQ(settings.each[Quota::kCallBytes], 1 << 20);
  EXPECT_EQ(settings.each[Quota::kIdleTtl], int64_t{90} * 60 * 1'000'000'000);
  EXPECT_EQ(settings.each[Quota::kCheckpoints], 0);
  EXPECT_EQ(settings.each[Quota::kSessions], kNoQuota);
  EXPECT_TRUE(settings.principals.empty());
}

TEST(QuotaSection, APrincipalHasTheDefaultButForWhatItSays) {
  const QuotaSettings settings = Parsed(
      "principals:\n  search: {weight: 2.5, sessions: 7}\n  \"o'ps: {x}\": {tokens-per-second: none}\n  idle: {}\n"
      "default: {sessions: 3, tokens-per-second: 10, token-burst: 20}\n");
  const PrincipalQuotas& search = settings.principals.at("search");
  EXPECT_EQ(search.weight, 2.5);
  EXPECT_EQ(search.limits[Quota::kSessions], 7);
  EXPECT_EQ(search.limits[Quota::kTokensPerSecond], 10);
  const PrincipalQuotas& ops = settings.principals.at("o'ps: {x}");
  EXPECT_EQ(ops.weight, std::nullopt);
  EXPECT_EQ(ops.limits[Quota::kTokensPerSecond], kNoQuota);
  EXPECT_EQ(ops.limits[Quota::kTokenBurst], kNoQuota) << "there is no burst without a rate";
  EXPECT_EQ(settings.principals.at("idle").limits, settings.each);
}

TEST(QuotaSection, PrintsWhatItReads) {
  for (const std::string text : {"", "{}", "all: {sessions: 1}",
                                 "default: {idle-ttl: 90s, redis-bytes: 1GiB, token-burst: 3, "
                                 "tokens-per-second: 2}",
                                 "default: {sessions: 5, tokens-per-second: 9, token-burst: 8}\nprincipals:\n  a: {}\n "
                                 " 'b''s': {sessions: none, "
                                 "weight: 0.1}\n  c: {tokens-per-second: none}\n  d: {token-burst: none}\n"}) {
    const QuotaSettings settings = Parsed(text);
    const std::string printed = PrintQuotas(settings);
    EXPECT_EQ(Parsed(printed), settings) << printed;
    EXPECT_EQ(printed.find_first_of("\"\\\n"), std::string::npos) << printed;
  }
  EXPECT_EQ(PrintQuotas({}), "");
}

TEST(QuotaSection, TellsEveryFaultWithItsPlace) {
  struct Case {
    std::string text;
    std::vector<std::string> faults;
  };
  const std::vector<Case> cases = {
      {"[a]", {"f:1:1: quotas is no map, expected lines of KEY: VALUE"}},
      {"12", {"f:1:1: quotas is no map, expected lines of KEY: VALUE"}},
      {"defaults: {}", {"f:1:1: unknown key 'defaults' in quotas, did you mean 'default'?"}},
      {"everybody: {}", {"f:1:1: unknown key 'everybody' in quotas, expected all, default, principals"}},
      {"default: {}\ndefault: {}", {"f:2:1: 'default' stands twice in quotas, first in line 1"}},
      {"default: 5", {"f:1:10: default is no map, expected lines of KEY: VALUE"}},
      {"default:\n  session: 5", {"f:2:3: unknown key 'session' in default, did you mean 'sessions'?"}},
      {"default: {sessions: 5, sessions: 6}", {"f:1:24: 'sessions' stands twice in default, first in line 1"}},
      {"default:\n  sessions: few\n  idle-ttl: 0s\n  disk-bytes: -1",
       {"f:2:13: sessions is 'few', expected a whole number, 0 .. 1000000000, or none",
        "f:3:13: idle-ttl is '0s', expected a time above 0 such as 30m or 24h, or none",
        "f:4:15: disk-bytes is '-1', expected a number of bytes such as 1048576, 512KiB, 64MiB or 8GiB, or none"}},
      {"default: {sessions: [1]}", {"f:1:21: sessions is a list, expected a whole number, 0 .. 1000000000, or none"}},
      {"default: {tokens-per-second: 0}",
       {"f:1:30: tokens-per-second is '0', expected a whole number, 1 .. 1000000000, or none"}},
      {"default: {tokens-per-second: 1.5}",
       {"f:1:30: tokens-per-second is '1.5', expected a whole number, 1 .. 1000000000, or none"}},
      {"default: {token-burst: 4}",
       {"f:1:24: token-burst of default is given without tokens-per-second, expected both"}},
      {"all: {disk-bytes: 1GiB}", {"f:1:19: disk-bytes cannot be set under `all`; set --disk-state-bytes"}},
      {"all: {idle-ttl: 1h}",
       {"f:1:17: idle-ttl cannot be set under `all`; set it under `default`, because it is a limit of each session"}},
      {"default: {weight: 2}", {"f:1:11: unknown key 'weight' in default, expected " + AllKeys()}},
      {"principals: {a: {weight: 0}}", {"f:1:26: weight of 'a' is '0', expected a number above 0, at most 1e+06"}},
      {"principals: {a: {weight: nan}}", {"f:1:26: weight of 'a' is 'nan', expected a number above 0, at most 1e+06"}},
      {"principals: [a]", {"f:1:13: principals is no map, expected lines of KEY: VALUE"}},
      {"principals: {\"\": {}}", {"f:1:18: a principal's name is of 1 to 256 bytes without control characters"}},
      {"principals: {\"a\\nb\": {}}", {"f:1:22: a principal's name is of 1 to 256 bytes without control characters"}},
      {"principals: {[a]: {}}", {"f:1:14: a key of principals that is no text"}},
  };
  for (const Case& c : cases) EXPECT_EQ(FaultsOf(c.text), c.faults) << c.text;
}

}  // namespace
}  // namespace gdn::quota_section_test
