#include "server/rpc/pin_sessions.h"

#include <utility>

#include "base/task/arrivals.h"

namespace gdn {

Task<void> WaitForCheckpoints(Checkpointer& checkpointer, const std::vector<SessionAhead>& sessions,
                              std::optional<int32_t> layer) {
  if (!checkpointer.bounds_steps()) co_return;
  for (const SessionAhead& ahead : sessions) {
    bool waits = true;
    while (waits) {
      Arrivals made;
      made.Begin();
      waits = !checkpointer.WaitForRoom(ahead.session, layer, ahead.tokens, [&made] { made.End(); });
      if (waits) co_await made.All();
    }
  }
}

Task<Residency::PinResults> Pin(Residency& residency, const std::vector<SessionAhead>& sessions,
                                const WaitLimit& limit) {
  Residency::PinResults pins;
  if (sessions.empty()) co_return pins;
  std::vector<std::shared_ptr<Session>> all;
  all.reserve(sessions.size());
  for (const SessionAhead& ahead : sessions) all.push_back(ahead.session);
  Arrivals pinned;
  pinned.Begin();
  residency.Pin(std::move(all), limit, [&pins, &pinned](Residency::PinResults results) {
    pins = std::move(results);
    pinned.End();
  });
  co_await pinned.All();
  co_return pins;
}

}  // namespace gdn
