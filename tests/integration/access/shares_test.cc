// One principal takes all the room for sessions that it can get; another, within its share, notices nothing.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::shares_test {
namespace {

constexpr int kLayers = 2;

// Principals by the SHA-256 of the tokens "1" and "2".
constexpr char kPrincipals[] =
    R"({"principals": [
      {"name": "greedy", "sha256": ["16c2e9a3b8c0efc5d394421c9bdfac3ff12ce2c91b8f0208e0f75b013f22cb62"]},
      {"name": "modest", "sha256": ["cfcead19ff9b06ed6215a7c39808b52c03f27782522bc6070611c914f14a6604"]}]})";

class Shares : public ::testing::Test {
 protected:
  Shares() {
    std::ofstream(folder_.path() + "/principals.json") << kPrincipals;
    std::filesystem::create_directory(folder_.path() + "/states");
  }

  // Room for 3 sessions on the device, 9 in host memory and 40 on the disk.
  GdnServerOptions Options() const {
    return {.memory = {.device_state_bytes = 7 * bytes_ / 2, .host_state_bytes = 9 * bytes_},
            .states = {.disk = {.directory = folder_.path() + "/states", .limit_bytes = 40 * bytes_}},
            .principals = {.file = folder_.path() + "/principals.json"}};
  }
  static int64_t SessionBytes() {
    TestServer server;
    return Caller(server).CreateOperator("probe", SmallOperator(kLayers)).reply.state_bytes();
  }
  // A session that has seen three tokens in each layer.
  grpc::Status TryStart(const Caller& caller, const std::string& id) const {
    const auto made = feed_.Create(caller, id);
    for (int layer = 0; made.ok() && layer < kLayers; ++layer) {
      EXPECT_TRUE(caller.Prefill(feed_.Prefill(id, {0, 3}, layer)).ok()) << id;
    }
    return made.status;
  }
  // By both methods in turn.
  std::string Step(const Caller& caller, const std::string& id, int step) const {
    const TokenRange token = {3 + step, 1};
    if (step % 4 < 2) return feed_.DecodeAll(caller, id, token, step % kLayers);
    const auto reply = caller.Step(feed_.Step({{.id = id, .range = token}}, step % kLayers));
    EXPECT_TRUE(reply.ok()) << id << " step " << step << ": " << reply.status.error_message();
    return reply.reply.output().data();
  }

  const int64_t bytes_ = SessionBytes();
  const TokenFeed feed_ = TokenFeed::Operator(kLayers);
  const TempFolder folder_;
};

TEST_F(Shares, OneThatTakesAllItCanIsInNobodysWay) {
  TestServer alone;
  const Caller undisturbed(alone);
  const std::vector<std::string> ids = {"a", "b"};
  for (const std::string& id : ids) ASSERT_TRUE(TryStart(undisturbed, id).ok());
  std::vector<std::string> taken;
  {
    TestServer server(Options());
    const Caller greedy(server, "Bearer 1"), modest(server, "Bearer 2");
    grpc::Status refused;
    for (const std::string& id : SessionIds(60)) {
      refused = TryStart(greedy, id);
      if (!refused.ok()) break;
      taken.push_back(id);
    }
    EXPECT_TRUE(RefusedAs(refused, "BYTES_EXHAUSTED", {{"pool", "session"}, {"limit", std::to_string(40 * bytes_)}}));
    EXPECT_TRUE(HasRetryInfo(refused));
    EXPECT_EQ(taken.size(), 35u) << "seven eighths";
    EXPECT_TRUE(RefusedAs(greedy.Fork(taken[0], {"fork"}), "BYTES_EXHAUSTED", {{"pool", "session"}}));
    ASSERT_REPLY(const std::string file, greedy.Export(taken[0], /*include_recurrent_state=*/true));
    v1::ImportStateRequest::Target target;
    target.set_session_id("import");
    *target.mutable_operator_() = SmallOperator(kLayers);
    EXPECT_TRUE(RefusedAs(greedy.Import(target, file), "BYTES_EXHAUSTED", {{"pool", "session"}}));
    EXPECT_TRUE(RefusedAs(greedy.Checkpoint(taken[0], "named"), "BYTES_EXHAUSTED", {{"pool", "session"}}));
    for (const char* id : {"fork", "import"}) EXPECT_EQ(greedy.Get(id).reason(), "SESSION_NOT_FOUND");
    for (const std::string& id : taken) greedy.Checkpoint(id);  // as the disk has room

    for (const std::string& id : ids) {
      const grpc::Status made = TryStart(modest, id);
      ASSERT_TRUE(made.ok()) << made.error_message();
    }
    for (int step = 0; step < 20; ++step) {
      const std::string& id = ids[static_cast<size_t>(step % 2)];
      EXPECT_EQ(Step(modest, id, step), Step(undisturbed, id, step));
      // Each of the other's comes to the device once, and has others go.
      for (size_t i = static_cast<size_t>(step) % 4; i < taken.size(); i += 4) Step(greedy, taken[i], step / 4);
      for (const std::string& mine : ids) {
        EXPECT_NE(modest.Get(mine).reply.tier(), v1::STATE_TIER_DISK) << mine << " after " << step;
      }
      if (step % 10 > 7) {
        const auto made = modest.Checkpoint(id, step < 10 ? "" : "named");
        EXPECT_TRUE(made.ok()) << made.status.error_message();
      }
    }
    EXPECT_GT(TierNamed(modest, "disk").sessions(), 20);
    // Not before the last move has ended.
    const auto disk_is_charged = [&] {
      return server.server().ledger().held(BytePool::kDisk) == TierNamed(modest, "disk").used_bytes();
    };
    EXPECT_TRUE(WaitUntil(disk_is_charged, "what the disk has"));
    for (const std::string& id : ids) EXPECT_EQ(modest.State(id), undisturbed.State(id));
    EXPECT_TRUE(server.Drain());
  }
  // They count after a restart, under the principals' names.
  TestServer server(Options());
  const Caller greedy(server, "Bearer 1"), modest(server, "Bearer 2");
  const ByteLedger& ledger = server.server().ledger();
  EXPECT_EQ(ledger.held(BytePool::kDisk), TierNamed(modest, "disk").used_bytes());
  EXPECT_GT(ledger.held(BytePool::kStates), (35 + 2) * bytes_) << "and named checkpoints";
  EXPECT_LT(ledger.held(BytePool::kStates), (35 + 2 + 2) * bytes_);
  EXPECT_TRUE(RefusedAs(TryStart(greedy, "another"), "BYTES_EXHAUSTED", {{"pool", "session"}}));
  EXPECT_TRUE(TryStart(modest, "c").ok());
  for (const std::string& id : ids) EXPECT_EQ(modest.State(id), undisturbed.State(id));
  for (const std::string& id : taken) ASSERT_TRUE(greedy.Delete(id).ok());
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(modest.Delete(id).ok());
  for (size_t pool = 0; pool < kBytePools; ++pool) {
    EXPECT_TRUE(WaitUntil([&] { return ledger.held(static_cast<BytePool>(pool)) == 0; }, "bytes given back")) << pool;
  }
}

TEST_F(Shares, CheckpointsOfOneOverItsShareLeaveRoomForOthers) {
  GdnServerOptions options = Options();
  options.memory.device_state_bytes = 40 * bytes_;
  options.memory.host_state_bytes = 0;
  options.states.disk.limit_bytes = 8 * bytes_;
  TestServer server(options);
  const Caller greedy(server, "Bearer 1"), modest(server, "Bearer 2");
  grpc::Status refused;
  for (const std::string& id : SessionIds(34)) {  // files are smaller than states on the device
    ASSERT_TRUE(TryStart(greedy, id).ok());
    refused = greedy.Checkpoint(id).status;
    if (!refused.ok()) break;
  }
  EXPECT_TRUE(RefusedAs(refused, "BYTES_EXHAUSTED", {{"pool", "disk"}}));
  EXPECT_TRUE(HasRetryInfo(refused));
  const int64_t used = TierNamed(greedy, "disk").used_bytes();
  EXPECT_LE(used, 7 * bytes_) << "seven eighths";
  EXPECT_GT(used, 6 * bytes_);
  EXPECT_TRUE(greedy.Checkpoint("s0").ok()) << "it replaces one";
  ASSERT_TRUE(TryStart(modest, "a").ok());
  const auto checkpoint = modest.Checkpoint("a");
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status.error_message();
}

}  // namespace
}  // namespace gdn::shares_test
