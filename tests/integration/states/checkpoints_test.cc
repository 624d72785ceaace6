// A session's named checkpoints: how many there may be, the list of them, their ends.
#include <memory>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/test_server.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::checkpoints_test {
namespace {

class Checkpoints : public ::testing::Test {
 protected:
  Checkpoints() { Start(); }

  void Start() {
    caller_ = nullptr;
    server_ = nullptr;  // frees the folder
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.states.disk.directory = folder_.path();
    server_ = std::make_unique<TestServer>(std::move(options));
    caller_ = std::make_unique<Caller>(*server_);
  }
  int64_t DiskBytes() const {
    const v1::GetServerInfoResponse info = caller_->Info().reply;
    for (const v1::TierInfo& tier : info.tiers()) {
      if (tier.name() == "disk") return tier.used_bytes();
    }
    return -1;
  }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
};

TEST_F(Checkpoints, AreListedWithTheirBytesAlsoAfterARestart) {
  feed_.Start(*caller_, "a", {0, 7}, 0);
  ASSERT_TRUE(caller_->Checkpoint("a").ok());
  const int64_t newest_bytes = DiskBytes();
  ASSERT_REPLY(const auto none, caller_->Checkpoints("a"));
  EXPECT_EQ(none.checkpoints_size(), 0);
  ASSERT_REPLY(const auto seven, caller_->Checkpoint("a", "seven"));
  feed_.DecodeAll(*caller_, "a", {7, 2});
  ASSERT_REPLY(const auto nine, caller_->Checkpoint("a", "nine"));
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    if (restarted) Start();
    ASSERT_REPLY(const auto list, caller_->Checkpoints("a"));
    ASSERT_EQ(list.checkpoints_size(), 2);
    EXPECT_EQ(list.checkpoints(0).checkpoint_id(), "nine");
    EXPECT_EQ(list.checkpoints(0).layers(0).token_count(), 9);
    EXPECT_EQ(list.checkpoints(0).layers(0).durable_token_count(), 9);
    EXPECT_EQ(list.checkpoints(0).epoch(), 1);
    EXPECT_EQ(list.checkpoints(0).written_bytes(), nine.written_bytes());
    EXPECT_EQ(list.checkpoints(1).checkpoint_id(), "seven");
    EXPECT_GT(list.checkpoints(1).create_time().seconds(), 0);
    EXPECT_EQ(list.stored_bytes(), seven.written_bytes() + nine.written_bytes());
    EXPECT_EQ(DiskBytes(), newest_bytes + list.stored_bytes()) << "they count among the tier's bytes";
  }
  ASSERT_TRUE(caller_->DeleteCheckpoint("a", "seven").ok());
  EXPECT_EQ(DiskBytes(), newest_bytes + nine.written_bytes());
  EXPECT_TRUE(RefusedAs(caller_->Restore("a", "seven"), "CHECKPOINT_NOT_FOUND", {{"checkpoint", "seven"}}));
  EXPECT_TRUE(RefusedAs(caller_->DeleteCheckpoint("a", "seven"), "CHECKPOINT_NOT_FOUND", {{"checkpoint", "seven"}}));
  ASSERT_TRUE(caller_->Restore("a", "nine").ok()) << "the others are whole";
  EXPECT_EQ(caller_->TokenCount("a", 0), 9);
  ASSERT_TRUE(caller_->Delete("a").ok());
  EXPECT_EQ(DiskBytes(), 0);
}

TEST_F(Checkpoints, AreSixtyFourAtMostAlsoAfterARestart) {
  feed_.Start(*caller_, "a", {0, 2}, 0);
  for (int i = 0; i < 64; ++i) ASSERT_TRUE(caller_->Checkpoint("a", std::to_string(i)).ok());
  for (const bool restarted : {false, true}) {
    SCOPED_TRACE(restarted);
    if (restarted) Start();
    EXPECT_TRUE(RefusedAs(caller_->Checkpoint("a", "more"), "TOO_MANY_CHECKPOINTS",
                          {{"session", "sessions/a"}, {"checkpoint", "more"}, {"limit", "64"}}));
    EXPECT_TRUE(caller_->Checkpoint("a").ok()) << "the newest has no name";
    EXPECT_TRUE(caller_->Checkpoint("a", "5").ok()) << "that id is there";
  }
  ASSERT_TRUE(caller_->DeleteCheckpoint("a", "5").ok());
  EXPECT_TRUE(caller_->Checkpoint("a", "more").ok());
  EXPECT_EQ(caller_->Checkpoints("a").reply.checkpoints_size(), 64);
}

TEST(CheckpointsWithoutADurableTier, AreRefused) {
  TestServer server({.models = TokenFeed::Models()});
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(2);
  feed.Start(caller, "a", {0, 2}, 0);
  EXPECT_TRUE(RefusedAs(caller.Checkpoints("a"), "NO_DURABLE_TIER"));
  EXPECT_TRUE(RefusedAs(caller.DeleteCheckpoint("a", "x"), "NO_DURABLE_TIER"));
}

}  // namespace
}  // namespace gdn::checkpoints_test
