#include "server/rpc/steps/pin_sessions.h"

#include <utility>

#include "base/task/status_macros.h"

namespace gdn {

Task<absl::Status> WaitForCheckpoints(Checkpointer& checkpointer, const std::vector<SessionAhead>& sessions,
                                      std::optional<int32_t> layer, const Deadline& deadline) {
  if (!checkpointer.bounds_steps()) co_return absl::OkStatus();
  for (const SessionAhead& ahead : sessions) {
    GDN_CO_RETURN_IF_ERROR(co_await checkpointer.WaitForRoom(ahead.session, layer, ahead.tokens, deadline));
  }
  co_return absl::OkStatus();
}

Task<Residency::PinResults> PinSessions(Residency& residency, const std::vector<SessionAhead>& sessions,
                                        const Deadline& deadline) {
  Residency::PinResults pins;
  if (sessions.empty()) co_return pins;
  std::vector<std::shared_ptr<Session>> all;
  all.reserve(sessions.size());
  for (const SessionAhead& ahead : sessions) all.push_back(ahead.session);
  pins = Residency::TryPin(all);  // usually succeeds
  if (pins.empty()) pins = co_await residency.Pin(std::move(all), deadline);
  co_return pins;
}

}  // namespace gdn
