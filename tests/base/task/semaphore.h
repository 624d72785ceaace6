// For tests of waits. A number of units that flows take and give back: places in a queue, bytes, copies at a time.
//
// Requests are served in their order, however many units they want: a large request is not passed by small ones.
// Thread safety: from any thread. Ownership: must outlive its permits and its waiters' waits.
//
//   Semaphore copies(2);
//   GDN_CO_ASSIGN_OR_RETURN(const Semaphore::Permit permit, co_await copies.Take(1, deadline));
#pragma once

#include <cstdint>
#include <mutex>
#include <utility>

#include "absl/status/statusor.h"
#include "base/task/waiter.h"

namespace gdn {

class Semaphore {
 public:
  // Units that somebody has; given back on destruction.
  class [[nodiscard]] Permit {
   public:
    Permit() = default;  // of nothing
    Permit(Permit&& other) noexcept : of_(std::exchange(other.of_, nullptr)), units_(std::exchange(other.units_, 0)) {}
    Permit& operator=(Permit&& other) noexcept {
      std::swap(of_, other.of_);
      std::swap(units_, other.units_);
      return *this;
    }
    ~Permit() { GiveBack(); }
    int64_t units() const { return units_; }
    void GiveBack();

   private:
    friend class Semaphore;
    Permit(Semaphore* of, int64_t units) : of_(of), units_(units) {}
    Semaphore* of_ = nullptr;
    int64_t units_ = 0;
  };

  class Awaiter final : public Waiter {
   public:
    Awaiter(Semaphore& of, int64_t units, Deadline deadline) : Waiter(std::move(deadline)), of_(of), units_(units) {}
    absl::StatusOr<Permit> await_resume();

   private:
    friend class Semaphore;
    bool Enlist() override;
    void Delist() override;
    Semaphore& of_;
    const int64_t units_;
  };

  // `units`: 0 or more.
  explicit Semaphore(int64_t units) : units_(units), free_(units) {}
  Semaphore(const Semaphore&) = delete;
  Semaphore& operator=(const Semaphore&) = delete;

  // Waits for its turn and for the units. RESOURCE_EXHAUSTED at once for more units than there are in all;
  // DEADLINE_EXCEEDED, CANCELLED. `units`: 0 or more.
  Awaiter Take(int64_t units, Deadline deadline = {}) { return Awaiter(*this, units, std::move(deadline)); }
  // Never waits. False if there are too few free units, or somebody waits for some.
  bool TryTake(int64_t units, Permit* permit);
  // Units that nobody has.
  int64_t free() const;

 private:
  bool TryTakeLocked(int64_t units);
  // Serves those that wait, as far as the free units go.
  void ServeLocked(FlowQueue& resumed);

  const int64_t units_;
  mutable std::mutex mu_;
  int64_t free_;      // guarded by mu_
  WaitList waiters_;  // guarded by mu_
};

}  // namespace gdn
