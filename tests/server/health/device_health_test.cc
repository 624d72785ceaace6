#include "server/health/device_health.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"

namespace gdn::device_health_test {
namespace {

absl::Status Failure(const std::string& message) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, message);
}

TEST(DeviceHealth, KeepsTheFirstFailureForGood) {
  DeviceHealth health;
  EXPECT_TRUE(health.status().ok());
  EXPECT_EQ(health.Report(Failure("first")), Failure("first"));
  EXPECT_EQ(health.Report(Failure("second")), Failure("second")) << "who reports gets back what it met itself";
  EXPECT_TRUE(health.Report(absl::OkStatus()).ok());
  EXPECT_EQ(health.status(), Failure("first"));
}

TEST(DeviceHealth, OtherErrorsSayNothingAboutTheDevice) {
  DeviceHealth health([](const absl::Status& failure) { ADD_FAILURE() << failure; });
  const absl::Status full =
      MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted, "the device is full");
  EXPECT_EQ(health.Report(full), full);
  EXPECT_FALSE(health.Report(absl::UnavailableError("a tier is away")).ok());
  EXPECT_TRUE(health.status().ok());
}

TEST(DeviceHealth, TellsOfTheFailureOnceAndIsBadByThen) {
  std::vector<absl::Status> told;
  DeviceHealth* seen = nullptr;
  DeviceHealth health([&](const absl::Status& failure) {
    told.push_back(failure);
    EXPECT_EQ(seen->status(), failure) << "and may be asked from there";
  });
  seen = &health;
  for (const char* message : {"first", "second", "third"}) EXPECT_FALSE(health.Report(Failure(message)).ok());
  EXPECT_EQ(told, std::vector<absl::Status>{Failure("first")});
}

TEST(DeviceHealth, OfManyThreadsThatReportAtOnceOneIsFirst) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> told{0};
    absl::Status first;
    DeviceHealth health([&](const absl::Status& failure) {
      ++told;
      first = failure;
    });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([&health, i] {
        while (health.status().ok()) health.Report(Failure(std::to_string(i))).IgnoreError();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(told, 1);
    EXPECT_EQ(health.status(), first);
  }
}

}  // namespace
}  // namespace gdn::device_health_test
