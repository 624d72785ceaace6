// The quotas of the configuration: limits for each caller, and for all callers together.
//
// A caller is an account of the ledger (byte_ledger.h): a listed principal, or one address of the callers that are not
// listed.
// Thread safety: values. Ownership: none.
//
//   QuotaSettings settings;
//   settings.each[Quota::kSessions] = 100;
//   settings.principals["search"].limits[Quota::kTokensPerSecond] = 20'000;
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace gdn {

enum class Quota : uint8_t {
  kSessions,     // number of existing sessions, wherever their states are
  kCheckpoints,  // named checkpoints; a session's newest checkpoint does not count
  // Bytes:
  kStateBytes,  // states of all sessions and named checkpoints, wherever they are
  kDeviceBytes,
  kHostBytes,
  kDiskBytes,
  kRedisBytes,
  kCallBytes,  // messages of calls that wait or run, and their replies
  kCopyBytes,  // temporary copies of states (exports, checkpoints, moves)
  // Tokens of steps; a token counts once for each layer that it goes through:
  kTokensPerSecond,
  kTokenBurst,  // tokens that may come at once; if not set, those of one second
  // Nanoseconds, for each session; a longer time is refused if it was asked for, else shortened:
  kIdleTtl,
  kMaxLifetime,
};
inline constexpr std::array<std::string_view, 13> kQuotaNames = {
    "sessions",   "checkpoints", "state-bytes",       "device-bytes", "host-bytes", "disk-bytes",  "redis-bytes",
    "call-bytes", "copy-bytes",  "tokens-per-second", "token-burst",  "idle-ttl",   "max-lifetime"};
inline constexpr size_t kQuotas = kQuotaNames.size();

inline std::string_view QuotaName(Quota quota) { return kQuotaNames[static_cast<size_t>(quota)]; }

inline constexpr int64_t kNoQuota = std::numeric_limits<int64_t>::max();

class QuotaLimits {
 public:
  QuotaLimits() { limits_.fill(kNoQuota); }
  int64_t operator[](Quota quota) const { return limits_[static_cast<size_t>(quota)]; }
  int64_t& operator[](Quota quota) { return limits_[static_cast<size_t>(quota)]; }
  bool operator==(const QuotaLimits&) const = default;

 private:
  std::array<int64_t, kQuotas> limits_;
};

struct PrincipalQuotas {
  QuotaLimits limits;
  std::optional<double> weight;  // weight of its share; nullopt: the weight in the list of principals, or 1
  bool operator==(const PrincipalQuotas&) const = default;
};

struct QuotaSettings {
  QuotaLimits all;                                                 // limits of all callers together
  QuotaLimits each;                                                // limits of each account that is not in `principals`
  std::map<std::string, PrincipalQuotas, std::less<>> principals;  // by name; these limits replace all of `each`
  bool operator==(const QuotaSettings&) const = default;
};

}  // namespace gdn
