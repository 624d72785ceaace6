// For tests of waits. Turns a callback into a wait: the result of one operation that somebody else finishes, on any
// thread.
//
// The waiter and the operation share the result, so either may go first: after a deadline has ended the wait, the
// result is dropped when it comes. If all setters are destroyed without a result, the wait ends with INTERNAL.
// Thread safety: setters from any thread; Completion itself belongs to one flow. Ownership: shared, as above.
//
//   Completion<absl::StatusOr<Image>> fetched;
//   tier.Fetch(key, [set = fetched.setter()](absl::StatusOr<Image> image) { set(std::move(image)); });
//   GDN_CO_ASSIGN_OR_RETURN(Image image, co_await fetched.Wait(deadline));
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/task/frame_pool.h"
#include "base/task/waiter.h"

namespace gdn {

// How a wait for a T ends: T with room for the wait's own errors.
template <typename T>
struct WaitResultOf {
  using Type = absl::StatusOr<T>;
};
template <>
struct WaitResultOf<void> {
  using Type = absl::Status;
};
template <>
struct WaitResultOf<absl::Status> {
  using Type = absl::Status;
};
template <typename T>
struct WaitResultOf<absl::StatusOr<T>> {
  using Type = absl::StatusOr<T>;
};
template <typename T>
using WaitResult = typename WaitResultOf<T>::Type;

template <typename T>
class Completion {
  struct Shared;

 public:
  Completion() : shared_(std::allocate_shared<Shared>(FrameAllocator<Shared>())) {}
  Completion(const Completion&) = delete;
  Completion& operator=(const Completion&) = delete;

  // Copies are the same setter.
  class Setter {
   public:
    // Gives the result; without arguments for void. The first call counts, later ones return false and do nothing.
    // The waiting flow goes on at its own executor, not in here.
    template <typename... Value>
    bool operator()(Value&&... value) const {
      return last_->shared->Set(std::forward<Value>(value)...);
    }

   private:
    friend class Completion;
    struct Last {
      explicit Last(std::shared_ptr<Shared> of) : shared(std::move(of)) {}
      Last(const Last&) = delete;
      Last& operator=(const Last&) = delete;
      ~Last() {
        if (!shared->ready.load(std::memory_order_acquire)) {
          shared->Set(absl::InternalError("an operation was dropped without a result"));
        }
      }
      const std::shared_ptr<Shared> shared;
    };
    explicit Setter(const std::shared_ptr<Shared>& shared)
        : last_(std::allocate_shared<Last>(FrameAllocator<Last>(), shared)) {}
    std::shared_ptr<Last> last_;
  };
  // Once.
  Setter setter() const { return Setter(shared_); }

  class Awaiter final : public Waiter {
   public:
    Awaiter(Shared& shared, Deadline deadline) : Waiter(std::move(deadline)), shared_(shared) {}
    bool await_ready() override { return shared_.ready.load(std::memory_order_acquire); }
    WaitResult<T> await_resume() {
      const WaitEnd end = Finish();
      if (end != WaitEnd::kDone) return StatusOf(end);
      return *std::move(shared_.result);
    }

   private:
    friend struct Shared;
    bool Enlist() override {
      const std::lock_guard lock(shared_.mu);
      if (shared_.result.has_value()) return false;
      shared_.waiter = this;
      return true;
    }
    void Delist() override {
      const std::lock_guard lock(shared_.mu);
      shared_.waiter = nullptr;
    }
    Shared& shared_;
  };
  // Once, for the result. DEADLINE_EXCEEDED, CANCELLED of the deadline; INTERNAL, see above. A result that is there
  // already wins over a deadline that has passed.
  Awaiter Wait(Deadline deadline = {}) & { return Awaiter(*shared_, std::move(deadline)); }

 private:
  struct Shared {
    template <typename... Value>
    bool Set(Value&&... value) {
      Flow* resume = nullptr;
      {
        const std::lock_guard lock(mu);
        if (result.has_value()) return false;
        result.emplace(std::forward<Value>(value)...);
        ready.store(true, std::memory_order_release);
        if (Waiter* ended = std::exchange(waiter, nullptr); ended != nullptr)
          resume = ended->End(WaitEnd::kDone).resume;
      }
      if (resume != nullptr) resume->executor().Post(*resume);
      return true;
    }

    std::mutex mu;
    std::atomic<bool> ready{false};       // set with mu
    std::optional<WaitResult<T>> result;  // guarded by mu until ready
    Waiter* waiter = nullptr;             // guarded by mu
  };

  const std::shared_ptr<Shared> shared_;
};

}  // namespace gdn
