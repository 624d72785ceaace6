// SwitchesOf of base/threads/this_thread.h: which threads hang.
#include "base/threads/this_thread.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <optional>
#include <thread>

#include "absl/synchronization/notification.h"

namespace gdn::thread_pulse_test {
namespace {

// Runs `work` on a thread until `look`, which gets that thread's number, is true; `release` then ends the work.
template <typename Work, typename Look, typename Release>
void WatchUntil(Work work, Look look, Release release) {
  std::atomic<int> number{0};
  std::thread thread([&] {
    number = ThisThreadNumber();
    work();
  });
  while (number == 0 || !look(number.load())) std::this_thread::yield();
  release();
  thread.join();
}

TEST(ThreadPulse, AThreadThatWaitsForOneThingStandsStill) {
  absl::Notification released;
  int same = 0;
  std::optional<int64_t> last;
  WatchUntil([&] { released.WaitForNotification(); },
             [&](int thread) {
               std::this_thread::sleep_for(std::chrono::milliseconds(1));
               const std::optional<int64_t> switches = SwitchesOf(thread);
               same = switches.has_value() && switches == last ? same + 1 : 0;
               last = switches;
               return same == 20;
             },
             [&] { released.Notify(); });
  EXPECT_GE(*last, 0);
}

TEST(ThreadPulse, AThreadThatWorksDoesNot) {
  std::atomic<bool> stop{false};
  int seen_running = 0;
  WatchUntil(
      [&] {
        while (!stop) {
        }
      },
      [&](int thread) { return (seen_running += SwitchesOf(thread).has_value() ? 0 : 1) == 20; }, [&] { stop = true; });
}

TEST(ThreadPulse, AThreadThatWaitsNowAndThenDoesNot) {
  std::atomic<bool> stop{false};
  std::optional<int64_t> first;
  WatchUntil(
      [&] {
        while (!stop) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      [&](int thread) {
        const std::optional<int64_t> switches = SwitchesOf(thread);
        if (!first.has_value()) first = switches;
        return first.has_value() && switches.has_value() && *switches > *first + 20;
      },
      [&] { stop = true; });
}

TEST(ThreadPulse, NothingIsKnownOfAThreadThatIsNotThere) { EXPECT_EQ(SwitchesOf(0), std::optional<int64_t>(-1)); }

}  // namespace
}  // namespace gdn::thread_pulse_test
