// What all sessions of a server share: the budget of stored replies, names for base states, and who hears of progress.
//
// Thread safety: safe from any thread; `on_progress` is set before the first session. Ownership: outlives every
// session.
//
//   SessionEnvironment environment(/*reply_bytes=*/int64_t{1} << 30);
//   environment.on_progress = [&](const std::shared_ptr<Session>& session) { ... };
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/steady_clock.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;

class SessionEnvironment {
 public:
  explicit SessionEnvironment(int64_t reply_bytes, const SteadyClock& clock = SteadyClock::Real())
      : reply_limit_(reply_bytes), clock_(clock) {}

  // Called after a step has been committed, outside any lock.
  std::function<void(const std::shared_ptr<Session>&)> on_progress;

  // Of ages and of what is due; no session's life depends on the wall's clock.
  const SteadyClock& clock() const { return clock_; }

  BaseVersion NextBaseVersion() { return next_base_version_.fetch_add(1, std::memory_order_relaxed); }

  // False where the stored replies would be over the limit.
  bool TryCharge(int64_t bytes);
  void Charge(int64_t bytes) { reply_bytes_.fetch_add(bytes, std::memory_order_relaxed); }
  void Discharge(int64_t bytes) { reply_bytes_.fetch_sub(bytes, std::memory_order_relaxed); }
  int64_t reply_bytes() const { return reply_bytes_.load(std::memory_order_relaxed); }
  int64_t reply_limit() const { return reply_limit_; }

 private:
  const int64_t reply_limit_;
  const SteadyClock& clock_;
  std::atomic<int64_t> reply_bytes_{0};
  std::atomic<BaseVersion> next_base_version_{1};
};

inline bool SessionEnvironment::TryCharge(int64_t bytes) {
  if (reply_bytes_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= reply_limit_) return true;
  Discharge(bytes);
  return false;
}

}  // namespace gdn
