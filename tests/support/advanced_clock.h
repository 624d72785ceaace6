// A steady clock that a test sets forward.
//
// Thread safety: from any thread. Ownership: a value.
//
//   AdvancedClock clock;
//   clock.Advance(absl::Hours(1));
#pragma once

#include <atomic>
#include <cstdint>

#include "base/threads/steady_clock.h"

namespace gdn {

class AdvancedClock final : public SteadyClock {
 public:
  SteadyTime Now() const override { return SteadyNow() + absl::Nanoseconds(ahead_.load()); }
  void Advance(absl::Duration by) { ahead_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> ahead_{0};
};

}  // namespace gdn
