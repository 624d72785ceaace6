#include "server/session/store_watch.h"

#include <spdlog/spdlog.h>

#include <vector>

#include "base/error.h"
#include "base/this_thread.h"

namespace gdn {

StoreWatch::StoreWatch(const StoreWatchParts& parts, absl::Duration interval)
    : parts_(parts), thread_([this, interval] {
        NameThisThread("gdn-store-watch");
        Loop(interval);
      }) {}

StoreWatch::~StoreWatch() {
  stop_.Give();
  thread_.join();
}

void StoreWatch::Loop(absl::Duration interval) {
  bool taken_in = parts_.take_in == nullptr;
  int64_t set_backs = 0;
  while (!stop_.GivenWithin(interval)) {
    if (!taken_in && !(taken_in = parts_.take_in().ok())) continue;
    const absl::Status claim = parts_.store.CheckClaim();
    if (const int64_t found = parts_.set_backs(); found != set_backs) {
      set_backs = found;
      CountNothingDurable();
    }
    if (ErrorReason(claim) != reason::kStatesTakenOver) continue;
    return StopServing(claim);  // for good: nothing is stored there any more
  }
}

void StoreWatch::CountNothingDurable() {
  for (const std::shared_ptr<Session>& session : parts_.sessions.All()) {
    const StateKey key = session->key();
    // A state that rests in the store is fetched and compared when it is needed.
    if (!parts_.tiers.HasCopy(parts_.store, key) || parts_.tiers.PlaceOf(key) == parts_.store.name()) continue;
    session->NoteDurable(/*changes=*/0, std::vector<int64_t>(session->spec().layers.size()), {});
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
