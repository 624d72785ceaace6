// Prepares sessions for a step: waits until the checkpoint policy allows it, and brings their states to the device.
//
// Thread safety: tasks belong to one flow. Ownership: what the parameters name must outlive the task.
//
//   GDN_CO_RETURN_IF_ERROR(co_await WaitForCheckpoints(checkpointer, sessions, layer, caller.deadline));
//   Residency::PinResults pins = co_await PinSessions(residency, sessions, caller.deadline);
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "server/session/durable/checkpointer.h"
#include "server/session/room/residency.h"

namespace gdn {

struct SessionAhead {
  std::shared_ptr<Session> session;
  int64_t tokens = 0;  // tokens that the step adds to those since the last checkpoint
};

// Waits until no session would move further from its last checkpoint than CheckpointPolicy::every_tokens allows, on
// `layer`, or on any layer with a draft if it is nullopt. Does not wait for a session whose checkpoint has just failed.
// DEADLINE_EXCEEDED, CANCELLED.
Task<absl::Status> WaitForCheckpoints(Checkpointer& checkpointer, const std::vector<SessionAhead>& sessions,
                                      std::optional<int32_t> layer, const Deadline& deadline);

// Brings the sessions' states to their devices, and keeps them there while the pins live. Results as Residency::Pin,
// parallel to `sessions`; empty if `sessions` is empty.
Task<Residency::PinResults> PinSessions(Residency& residency, const std::vector<SessionAhead>& sessions,
                                        const Deadline& deadline);

}  // namespace gdn
