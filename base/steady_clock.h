// Time that only goes forward, at the pace of time: how long ago something was and when it is due, whatever the wall's
// clock is set to meanwhile. The wall's clock (absl::Now) is for what people read.
//
// A SteadyTime means nothing to another process: files keep ages.
// Thread safety: values and free functions; clocks from any thread. Ownership: who is given a clock borrows it.
//
//   const SteadyTime due = clock.Now() + absl::Seconds(5);
//   if (clock.Now() >= due) ...
#pragma once

#include <cstdint>

#include "absl/time/time.h"

namespace gdn {

class SteadyTime {
 public:
  constexpr SteadyTime() = default;  // InfinitePast
  static constexpr SteadyTime InfinitePast() { return SteadyTime(); }
  static constexpr SteadyTime InfiniteFuture() { return SteadyTime(absl::InfiniteDuration()); }
  // For an atomic: nanoseconds since a moment that is the process's own. Of a moment that is not infinite.
  static constexpr SteadyTime FromNanos(int64_t nanos) { return SteadyTime(absl::Nanoseconds(nanos)); }
  int64_t ToNanos() const { return absl::ToInt64Nanoseconds(since_); }

  friend absl::Duration operator-(SteadyTime a, SteadyTime b) { return a.since_ - b.since_; }
  friend SteadyTime operator+(SteadyTime a, absl::Duration b) { return SteadyTime(a.since_ + b); }
  friend SteadyTime operator-(SteadyTime a, absl::Duration b) { return SteadyTime(a.since_ - b); }
  friend bool operator==(SteadyTime a, SteadyTime b) { return a.since_ == b.since_; }
  friend bool operator<(SteadyTime a, SteadyTime b) { return a.since_ < b.since_; }
  friend bool operator>(SteadyTime a, SteadyTime b) { return a.since_ > b.since_; }
  friend bool operator<=(SteadyTime a, SteadyTime b) { return a.since_ <= b.since_; }
  friend bool operator>=(SteadyTime a, SteadyTime b) { return a.since_ >= b.since_; }

 private:
  explicit constexpr SteadyTime(absl::Duration since) : since_(since) {}
  absl::Duration since_ = -absl::InfiniteDuration();
};

SteadyTime SteadyNow();

class SteadyClock {
 public:
  virtual ~SteadyClock() = default;
  virtual SteadyTime Now() const { return SteadyNow(); }
  static const SteadyClock& Real();
};

}  // namespace gdn
