#include "base/threads/steady_clock.h"

#include <chrono>

namespace gdn {

SteadyTime SteadyNow() {
  return SteadyTime::FromNanos(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
          .count());
}

const SteadyClock& SteadyClock::Real() {
  static const SteadyClock clock;
  return clock;
}

}  // namespace gdn
