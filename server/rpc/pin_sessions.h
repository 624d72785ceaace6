// Sessions on their way to a step: not too far from their last checkpoints, and with their states on the device.
//
// Thread safety: tasks belong to one flow. Ownership: what the parameters name must outlive the task.
//
//   co_await WaitForCheckpoints(context.checkpointer, sessions, layer);
//   Residency::PinResults pins = co_await Pin(context.residency, sessions, caller.limit);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/task/task.h"
#include "server/session/checkpointer.h"
#include "server/session/residency.h"

namespace gdn {

struct SessionAhead {
  std::shared_ptr<Session> session;
  int64_t tokens = 0;  // by which the step moves it away from its last checkpoint
};

// Waits until no session would move further from its last checkpoint than the policy allows, on `layer`, or on any
// layer with a draft if it is nullopt.
Task<void> WaitForCheckpoints(Checkpointer& checkpointer, const std::vector<SessionAhead>& sessions,
                              std::optional<int32_t> layer);

// Brings the sessions' states to their devices, and keeps them there while the pins live. Results as Residency::Pin;
// none for no sessions.
Task<Residency::PinResults> Pin(Residency& residency, const std::vector<SessionAhead>& sessions,
                                const WaitLimit& limit);

}  // namespace gdn
