// Monotonic time, for ages and deadlines that changes of the wall clock must not move. The wall clock (absl::Now) is
// for what people read.
//
// A SteadyTime means nothing in another process: files store ages instead.
// Thread safety: values and free functions; clocks from any thread. Ownership: users borrow a clock.
//
//   const SteadyTime due = clock.Now() + absl::Seconds(5);
//   if (clock.Now() >= due) ...
#pragma once

#include <compare>
#include <cstdint>

#include "absl/time/time.h"

namespace gdn {

class SteadyTime {
 public:
  constexpr SteadyTime() = default;  // InfinitePast
  static constexpr SteadyTime InfinitePast() { return SteadyTime(); }
  static constexpr SteadyTime InfiniteFuture() { return SteadyTime(absl::InfiniteDuration()); }
  // Nanoseconds since a moment fixed for the process, to keep in an atomic. Finite times only.
  static constexpr SteadyTime FromNanos(int64_t nanos) { return SteadyTime(absl::Nanoseconds(nanos)); }
  int64_t ToNanos() const { return absl::ToInt64Nanoseconds(since_); }

  friend absl::Duration operator-(SteadyTime a, SteadyTime b) { return a.since_ - b.since_; }
  friend SteadyTime operator+(SteadyTime a, absl::Duration b) { return SteadyTime(a.since_ + b); }
  friend SteadyTime operator-(SteadyTime a, absl::Duration b) { return SteadyTime(a.since_ - b); }
  friend bool operator==(const SteadyTime&, const SteadyTime&) = default;
  // NOLINTNEXTLINE(modernize-use-nullptr): the literal 0 is no pointer here
  friend std::strong_ordering operator<=>(const SteadyTime&, const SteadyTime&) = default;

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
