// A session's position among its principal's sessions, by which the scheduler chooses the next step.
//
// Thread safety: the scheduler's; nobody else reads it. Ownership: a member of the caller's session.
//
//   step.turn = &session.turn();
#pragma once

#include <array>

namespace gdn {

struct SessionTurn {
  // Times at which the session's next decode and its next prefill are due. They rise by the device time, in
  // microseconds, that each of its steps is charged. A session that comes back begins at its flow's time.
  std::array<double, 2> due{};
};

}  // namespace gdn
