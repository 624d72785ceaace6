// RedisTier::NextIncarnation.
#include <hiredis/hiredis.h>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/redis_tier.h"

namespace gdn {

absl::StatusOr<int64_t> RedisTier::NextIncarnation() {
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<RedisConnection> redis, pool_.Take());
  const std::string key = StrCat(options_.prefix, "incarnation");
  GDN_ASSIGN_OR_RETURN(const RedisReply reply, redis->Call({"INCR", key}));
  if (reply->type != REDIS_REPLY_INTEGER) {
    return RedisError(redis->endpoint(), absl::StatusCode::kUnavailable, reason::kTierUnavailable,
                      StrCat("INCR ", key, " gave no number"));
  }
  const int64_t incarnation = reply->integer;
  pool_.Return(std::move(redis));
  return incarnation;
}

}  // namespace gdn
