// A session's position among its principal's sessions, by which the scheduler chooses the next step.
//
// Thread safety: the scheduler's; nobody else reads it. Ownership: a member of the caller's session.
//
//   step.turn = &session.turn();
#pragma once

#include <array>

namespace gdn {

struct SessionTurn {
  std::array<double, 2> due{};  // when its next decode and its next prefill are due, in its flow's time
};

}  // namespace gdn
