#include "server/session/durable/store_watch.h"

#include <spdlog/spdlog.h>

#include "base/error.h"

namespace gdn {

StoreWatch::StoreWatch(const StoreWatchParts& parts, absl::Duration interval)
    : parts_(parts),
      taken_in_(parts.take_in == nullptr),
      thread_("gdn-store-watch", interval, [this, interval] { return Look() ? absl::InfiniteDuration() : interval; }) {}

bool StoreWatch::Look() {
  if (!taken_in_ && !(taken_in_ = parts_.take_in().ok())) return false;
  const absl::Status claim = parts_.store.CheckClaim();
  if (const int64_t found = parts_.set_backs(); found != set_backs_) {
    set_backs_ = found;
    CountNothingDurable();
  }
  if (ErrorReason(claim) != reason::kStatesTakenOver) return false;
  StopServing(claim);
  return true;  // for good: nothing is stored there any more
}

void StoreWatch::CountNothingDurable() {
  for (const std::shared_ptr<Session>& session : parts_.sessions.All()) {
    const StateKey key = session->key();
    // A state that rests in the store is fetched and compared when it is needed.
    if (!parts_.tiers.HasCopy(parts_.store, key) || parts_.tiers.PlaceOf(key) == parts_.store.name()) continue;
    session->NoteNotDurable();
  }
}

void StoreWatch::StopServing(const absl::Status& why) {
  int64_t stopped = 0;
  for (const std::shared_ptr<Session>& session : parts_.sessions.All()) {
    if (!parts_.tiers.HasCopy(parts_.store, session->key())) continue;
    session->StopServing(why);
    ++stopped;
  }
  spdlog::critical("{} sessions are no longer served here: another server has their states in {}", stopped,
                   parts_.store.name());
}

}  // namespace gdn
