// A session's place among its principal's, when the scheduler chooses whose step is next.
//
// Thread safety: the scheduler's; nobody else looks. Ownership: a member of whatever the session is.
//
//   step.turn = &session.turn();
#pragma once

#include <array>

namespace gdn {

struct SessionTurn {
  std::array<double, 2> due{};  // when its next decode, and its next prefill, are due, in its flow's time
};

}  // namespace gdn
