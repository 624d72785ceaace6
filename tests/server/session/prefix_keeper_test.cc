// States that become a prefix, and sessions that begin with them.
#include "server/session/prefixes/prefix_keeper.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/assert_ok.h"

namespace gdn::prefix_keeper_test {
namespace {

class PrefixKeeperTest : public ::testing::Test {
 protected:
  static PrefixClaim Claim(const std::vector<int64_t>& calls, unsigned char letter = 'a') {
    PrefixClaim claim{.kind = InputKind::kDeltaRule};
    claim.key.fill(letter);
    for (const int64_t tokens : calls) {
      claim.tokens += tokens;
      claim.calls = claim.calls.Then(tokens);
    }
    return claim;
  }
  // Every layer, in one call, to this mark.
  void PrefillAll(const std::shared_ptr<Session>& session, int64_t tokens, float mark) {
    auto pin = world_.PinOne(session);
    ASSERT_TRUE(pin.ok()) << pin.status();
    for (size_t i = 0; i < world_.spec.layers.size(); ++i) {
      auto admission = session->Admit(pin->Another(), PlainStep(world_.spec.layers[i]), nullptr);
      ASSERT_TRUE(admission.ok()) << admission.status();
      const absl::Status written = Prefill(std::move(admission->lease), TieredWorld::MarkOf(mark, i), tokens);
      ASSERT_TRUE(written.ok()) << written;
    }
  }
  absl::StatusOr<bool> Keep(const std::shared_ptr<Session>& session, const PrefixClaim& claim) {
    return BlockOn(world_.executor, keeper_.Keep(session, claim, Deadline()));
  }
  std::shared_ptr<Session> Begin(const std::string& id, const SessionImagePtr& image) {
    auto creation = world_.manager.Begin(world_.Init(id));
    EXPECT_TRUE(creation.ok()) << creation.status();
    absl::StatusOr<SessionLease> placed = world_.Place(std::move(creation->lease()), image);
    EXPECT_TRUE(placed.ok()) << placed.status();
    creation->Publish();
    placed->Release();
    return creation->session();
  }
  std::string FieldOf(const absl::Status& status) {
    EXPECT_EQ(ErrorReason(status), reason::kPrefixMismatch) << status;
    return ErrorMetadata(status)["field"];
  }

  TieredWorld world_{{.device_sessions = 4}};
  PrefixIndex index_{world_.ledger, {.limit_bytes = int64_t{1} << 30}};
  PrefixKeeper keeper_{world_.Parts(), index_, world_.residency};
};

TEST_F(PrefixKeeperTest, ASessionBeginsWithTheStatesThatWereKeptAndGoesItsOwnWay) {
  const auto first = world_.Make("first");
  PrefillAll(first, 10, 3);
  ASSERT_EQ(*Keep(first, Claim({10})), true);
  PrefillAll(first, 5, 4);
  EXPECT_EQ(index_.counts().used_bytes, world_.SessionBytes());
  const PrefixStart start = index_.Find({Claim({10}).key});
  ASSERT_NE(start.image, nullptr);
  EXPECT_EQ(start.tokens, 10);
  const auto begun = Begin("begun", start.image);
  EXPECT_EQ(*world_.Read(begun), 3);
  EXPECT_EQ(*world_.Read(first), 4);
  for (const LayerInfo& layer : begun->Layers()) {
    EXPECT_EQ(layer.progress.token_count, 10);
    EXPECT_EQ(layer.kind, InputKind::kDeltaRule);
    EXPECT_EQ(layer.calls, PrefillCalls().Then(10));
  }
  PrefillAll(begun, 7, 5);
  EXPECT_EQ(*Keep(begun, Claim({10, 7}, 'b')), true);
  EXPECT_EQ(*world_.Read(Begin("again", start.image)), 3) << "what is kept is nobody's to change";
}

TEST_F(PrefixKeeperTest, RefusesStatesThatAreNotThePrefixes) {
  const auto session = world_.Make("a");
  EXPECT_EQ(FieldOf(Keep(session, Claim({10})).status()), "token_count");
  PrefillAll(session, 10, 3);
  EXPECT_EQ(FieldOf(Keep(session, Claim({9})).status()), "token_count");
  EXPECT_EQ(FieldOf(Keep(session, Claim({4, 6})).status()), "prefills");
  PrefixClaim other = Claim({10});
  other.kind = InputKind::kHiddenStates;
  EXPECT_EQ(ErrorReason(Keep(session, other).status()), reason::kInputKindMismatch);
  ASSERT_TRUE(world_.Write(session, 5).ok());  // a decode of one token
  EXPECT_EQ(FieldOf(Keep(session, Claim({10, 1})).status()), "prefills");
  EXPECT_EQ(index_.counts().used_bytes, 0);
}

TEST_F(PrefixKeeperTest, KeepsWhatRestsInHostMemory) {
  std::vector<std::shared_ptr<Session>> sessions;
  for (const char* id : {"a", "b", "c", "d", "e", "f"}) {
    sessions.push_back(world_.Make(id));
    PrefillAll(sessions.back(), 10, static_cast<float>(sessions.size()));
  }
  EXPECT_EQ(world_.PlaceOf(sessions.front()), "host");
  ASSERT_EQ(*Keep(sessions.front(), Claim({10})), true);
  EXPECT_EQ(*world_.Read(Begin("begun", index_.Find({Claim({10}).key}).image)), 1);
}

TEST_F(PrefixKeeperTest, EntriesThatComeAndGoHarmNoSession) {
  const auto session = world_.Make("keeper");
  PrefillAll(session, 10, 3);
  std::atomic<bool> over = false;
  std::thread others([&] {
    while (!over) {
      EXPECT_TRUE(Keep(session, Claim({10})).ok());
      index_.Drop("");
    }
  });
  int begun = 0;
  while (begun < 50) {
    const PrefixStart start = index_.Find({Claim({10}).key});
    if (start.image == nullptr) continue;
    const std::string id = "s" + std::to_string(begun++);
    EXPECT_EQ(*world_.Read(Begin(id, start.image)), 3);
    EXPECT_TRUE(world_.Delete(id).ok());
  }
  over = true;
  others.join();
  index_.Drop("");
  EXPECT_EQ(index_.counts().used_bytes, 0);
}

}  // namespace
}  // namespace gdn::prefix_keeper_test
