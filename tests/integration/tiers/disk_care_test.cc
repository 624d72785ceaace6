// A server that looks after what is on its disk: damage is found before a session needs the state.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/http_client.h"

namespace gdn::disk_care_test {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr TokenRange kPrompt = {0, 5};

void FlipABit(const std::string& path) {
  const auto at = static_cast<std::streamoff>(std::filesystem::file_size(path)) - 5;
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(at);
  const auto flipped = static_cast<char>(file.get() ^ 0x20);
  file.seekp(at);
  file.put(flipped);
}

class DiskCare : public ::testing::Test {
 protected:
  // Scrubs without a pause, or not at all.
  void Start(bool scrubs) {
    caller_ = nullptr;
    server_ = nullptr;  // frees the folder
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.states.disk.directory = folder_.path();
    options.http_listen = "127.0.0.1:0";
    options.states.scrub = {.bytes_per_second = scrubs ? int64_t{1} << 40 : 0,
                            .idle_after = absl::ZeroDuration(),
                            .pass_every = absl::ZeroDuration()};
    options.states.disk.watermarks = {
        .high_percent = 90, .low_percent = 80, .space = [this](const std::string&) -> absl::StatusOr<DiskSpace> {
          return DiskSpace{.used_bytes = used_percent_ << 30, .total_bytes = int64_t{100} << 30};
        }};
    server_ = std::make_unique<TestServer>(std::move(options));
    caller_ = std::make_unique<Caller>(*server_);
  }
  std::string Page(const std::string& path) const { return HttpGet(*server_->server().http_port(), path).body; }
  void AwaitMetric(const std::string& line) const {
    while (Page("/metrics").find(line) == std::string::npos) absl::SleepFor(absl::Milliseconds(5));
  }
  std::string FileOf(const std::string& id) const {
    return FilesBelow(folder_, "s-" + id + "/state.safetensors").at(0);
  }

  const TempFolder folder_;
  std::atomic<int64_t> used_percent_{50};  // of the disk, as the server sees it
  const TokenFeed feed_ = TokenFeed::Operator(2);
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
};

TEST_F(DiskCare, WhatHasRottedWhileTheServerWasDownIsFoundBeforeItIsNeeded) {
  Start(/*scrubs=*/false);
  for (const std::string& id : SessionIds(3)) feed_.Start(*caller_, id, kPrompt, 2);
  const std::string state = caller_->State("s2");
  ASSERT_TRUE(caller_->Checkpoint("s1", "before").ok());
  EXPECT_TRUE(server_->Drain());
  FlipABit(FileOf("s0"));
  FlipABit(FileOf("s1"));

  Start(/*scrubs=*/true);
  AwaitMetric("gdn_scrub_last_pass_time_seconds ");
  const std::string metrics = Page("/metrics");
  EXPECT_THAT(metrics, HasSubstr("gdn_scrub_damaged_states_total{outcome=\"lost\"} 2\n"));
  EXPECT_THAT(metrics, HasSubstr("gdn_disk_set_aside_states 2\n"));
  EXPECT_THAT(Page("/statusz"), HasSubstr("2 found damaged since the start, 2 of them lost"));
  EXPECT_EQ(Page("/readyz"), "ready\n");
  EXPECT_THAT(FilesBelow(folder_, "/state.safetensors.damaged"), SizeIs(2));
  for (const bool restarted : {false, true}) {
    if (restarted) Start(/*scrubs=*/false);
    EXPECT_TRUE(RefusedAs(caller_->Decode(feed_.Decode({"s0"}, TokenRange{30, 1})), "INVALID_STATE_FILE"));
  }
  EXPECT_EQ(caller_->State("s2"), state);
  EXPECT_TRUE(caller_->Restore("s1", "before").ok()) << "a named checkpoint is as it was";
  ASSERT_TRUE(caller_->Delete("s0").ok());
  EXPECT_THAT(FilesBelow(folder_, "s-s0/state.safetensors.damaged"), IsEmpty());
}

TEST_F(DiskCare, ADamagedCheckpointOfASessionInUseIsMadeAnew) {
  Start(/*scrubs=*/true);
  feed_.Start(*caller_, "a", kPrompt, 1);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  EXPECT_EQ(caller_->Get("a").reply.layers(0).durable_token_count(), kPrompt.count + 1);
  FlipABit(FileOf("a"));
  AwaitMetric("gdn_scrub_damaged_states_total{outcome=\"not_durable\"} 1\n");
  while (caller_->Get("a").reply.layers(0).durable_token_count() != 0) absl::SleepFor(absl::Milliseconds(5));
  feed_.DecodeAll(*caller_, "a", {30, 1});
  const std::string state = caller_->State("a");
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  Start(/*scrubs=*/false);  // after a crash
  EXPECT_EQ(caller_->State("a"), state);
}

TEST_F(DiskCare, AboveTheHighWatermarkTheServerIsDegradedAndTakesNoNewStates) {
  Start(/*scrubs=*/false);
  feed_.Start(*caller_, "old", kPrompt, 1);
  feed_.Start(*caller_, "new", kPrompt, 1);
  ASSERT_TRUE(caller_->Checkpoint("old").ok());
  EXPECT_EQ(Page("/readyz"), "ready\n");
  used_percent_ = 95;
  AwaitMetric("gdn_disk_watermark_problems 1\n");
  EXPECT_THAT(Page("/metrics"), HasSubstr("gdn_disk_used_ratio 0.95\n"));
  EXPECT_EQ(HttpGet(*server_->server().http_port(), "/readyz").status, 200);
  EXPECT_EQ(Page("/readyz"),
            "ready, but degraded: disk 95 % full, above its watermark, so no new states are put there\n");
  EXPECT_THAT(Page("/statusz"), HasSubstr("--disk-high-watermark 90 %"));
  const auto refused = caller_->Checkpoint("new");
  EXPECT_TRUE(RefusedAs(refused, "STATE_BUDGET_EXHAUSTED", {{"available", "0"}}));
  EXPECT_GT(std::stoll(refused.metadata("needed")), 0);
  feed_.DecodeAll(*caller_, "old", {30, 1});
  EXPECT_TRUE(caller_->Checkpoint("old").ok()) << "it replaces one";
  used_percent_ = 85;
  EXPECT_TRUE(RefusedAs(caller_->Checkpoint("new"), "STATE_BUDGET_EXHAUSTED")) << "above the low one";
  used_percent_ = 80;
  EXPECT_TRUE(caller_->Checkpoint("new").ok());
  EXPECT_EQ(Page("/readyz"), "ready\n");

  used_percent_ = 95;
  feed_.Start(*caller_, "last", kPrompt, 1);
  const std::string state = caller_->State("last");
  EXPECT_TRUE(server_->Drain()) << "the end of a server loses nothing";
  Start(/*scrubs=*/false);
  EXPECT_EQ(caller_->State("last"), state);
}

}  // namespace
}  // namespace gdn::disk_care_test
