// The note that a server leaves on its disk when it ends in order. For each session that it vouches for, it says which
// version is the newest and which durable tier has it. Any other version may be older than what clients were told.
//
// The text has at most kMostBytes: sessions beyond that are not named, and so not vouched for. Its form:
// docs/reference/state-files.md.
// Text of another version, and text that is damaged, names nothing.
// Thread safety: a plain value. Ownership: owns its entries.
//
//   CleanMarker marker{.redis = stop_id};
//   marker.sessions[key] = {.tier = "disk", .version = image->header.version()};
//   std::string text = marker.ToText();
//   std::optional<CleanMarker> again = CleanMarker::Parse(text);
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "state_store/tiers/state_tier.h"

namespace gdn {

// Values of RedisClaim::found, about the server that had a Redis prefix last, unless that server ended in order.
inline constexpr std::string_view kPrefixUnused = "unused";    // nobody had it
inline constexpr std::string_view kPrefixUnknown = "unknown";  // it was killed, or nobody can tell

struct CleanMarker {
  static constexpr size_t kMostBytes = size_t{32} << 20;

  struct Copy {
    std::string tier;  // "disk", "redis"
    StateVersion version = {};
  };

  // The value that RedisClaim::found has at the next start, if no other server uses Redis before it and Redis is not
  // set back: the id of this server, or kPrefixUnused. kPrefixUnknown: nothing in Redis is evidence.
  std::string redis = std::string(kPrefixUnused);
  std::map<StateKey, Copy> sessions = {};  // newest copies; the keys have no checkpoint id

  // True if the marker is still valid, given RedisClaim::found of this start: nobody has used Redis in between.
  bool AgreesWith(std::string_view found) const { return found == redis && found != kPrefixUnknown; }
  // Returns the session's newest copy, which belongs to the marker; nullptr if the marker does not vouch for the
  // session.
  const Copy* Find(const StateKey& session) const;

  std::string ToText() const;
  static std::optional<CleanMarker> Parse(std::string_view text);
};

}  // namespace gdn
