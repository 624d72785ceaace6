// A session's position among its principal's sessions, by which the scheduler chooses the next step.
//
// Thread safety: the scheduler's; nobody else reads it. Ownership: a member of the caller's session.
//
//   step.turn = &session.turn();
#pragma once

#include <array>

namespace gdn {

struct SessionTurn {
  // When the session's next decode and its next prefill are due: microseconds of device time that its steps were
  // charged so far, at least the time of its flow when they came.
  std::array<double, 2> due{};
};

}  // namespace gdn
