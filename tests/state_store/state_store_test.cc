#include "state_store/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/null/null_backend.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_store_test {
namespace {

const LayerDims kDims{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8};
const LayerDims kOtherDims{.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 4};

class StateStoreTest : public ::testing::Test {
 protected:
  using Claims = std::vector<SlotClaim>;

  static int64_t SlotBytes(const LayerDims& dims = kDims) { return StateLayout::Make(dims, 8)->slot_bytes(); }
  Claims Reserve(int32_t count, const LayerDims& dims = kDims) { return store_.Reserve(dims, count).value(); }

  const std::unique_ptr<Backend> backend_ = MakeNullBackend();
  StateStore store_{*backend_, {.budget_bytes = 10 * SlotBytes() + 1, .max_draft = 8}};
};

TEST_F(StateStoreTest, ClaimsCountAgainstTheBudgetUntilTheyEnd) {
  EXPECT_EQ(store_.used_bytes(), 0);
  {
    Claims first = Reserve(6);
    EXPECT_EQ(first.size(), 6u);
    EXPECT_EQ(store_.used_bytes(), 6 * SlotBytes());
    Claims second = Reserve(4);
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes());

    SlotClaim moved = std::move(first[0]);
    EXPECT_FALSE(first[0].valid());
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes()) << "a move is no end";
    first.clear();
    EXPECT_EQ(store_.used_bytes(), 5 * SlotBytes());
    moved = SlotClaim();
    EXPECT_EQ(store_.used_bytes(), 4 * SlotBytes()) << "assignment ends what was there";
  }
  EXPECT_EQ(store_.used_bytes(), 0);
}

TEST_F(StateStoreTest, AnOverdraftIsRefusedAndTakesNothing) {
  const Claims held = Reserve(6);
  const auto refused = store_.Reserve(kDims, 5);
  ExpectError(refused.status(), absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_EQ(ErrorMetadata(refused.status()).at("needed"), std::to_string(5 * SlotBytes()));
  EXPECT_EQ(ErrorMetadata(refused.status()).at("available"), std::to_string(4 * SlotBytes() + 1));
  EXPECT_EQ(store_.used_bytes(), 6 * SlotBytes());
  EXPECT_TRUE(store_.Reserve(kDims, 4).ok());
}

TEST_F(StateStoreTest, BadDimensionsAreRefused) {
  LayerDims bad = kDims;
  bad.value_heads = 3;  // not a multiple of 2
  EXPECT_EQ(store_.Reserve(bad, 1).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(store_.used_bytes(), 0);
}

TEST_F(StateStoreTest, TheWholeBudgetCanBeTakenWithSparesBesides) {
  Claims a = Reserve(7);
  Claims b = Reserve(3);
  const std::shared_ptr<StatePool> pool = a[0].pool();
  EXPECT_EQ(b[0].pool(), pool) << "one layout, one pool";
  std::vector<SlotRef> slots;
  for (SlotClaim& claim : a) slots.push_back(std::move(claim).Take());
  for (SlotClaim& claim : b) slots.push_back(std::move(claim).Take());
  for (int i = 0; i < pool->spare_slots(); ++i) slots.push_back(pool->TakeSpare().value());
  std::set<int32_t> indices;
  for (const SlotRef& slot : slots) {
    ASSERT_TRUE(slot.valid());
    ASSERT_GE(slot.index(), 0);
    ASSERT_LT(slot.index(), pool->view().slot_count);
    indices.insert(slot.index());
    pool->view().slot(slot.index())[0] = 1.0f;
    pool->view().slot(slot.index())[pool->view().layout.slot_floats() - 1] = 1.0f;
  }
  EXPECT_EQ(indices.size(), slots.size()) << "every slot is somebody's own";
  EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes()) << "spares are nobody's budget";
}

TEST_F(StateStoreTest, SlotsLieAtMultiplesOfTheirSize) {
  for (const LayerDims& dims : {kDims, kOtherDims}) {
    const Claims claims = Reserve(1, dims);
    const auto address = reinterpret_cast<uintptr_t>(claims[0].pool()->view().data);
    EXPECT_EQ(address % static_cast<uintptr_t>(SlotBytes(dims)), 0u) << "pools of a layout are numbered alike";
  }
}

TEST_F(StateStoreTest, ASlotReturnsWithItsLastShareAndItsBudgetWithIt) {
  SlotRef first = std::move(Reserve(1)[0]).Take();
  EXPECT_TRUE(first.exclusive());
  SlotRef second = first;
  SlotRef third = second;
  EXPECT_EQ(second, first);
  EXPECT_FALSE(first.exclusive());
  first = SlotRef();
  EXPECT_FALSE(second.exclusive());
  second = std::move(third);
  EXPECT_TRUE(second.exclusive());
  EXPECT_FALSE(third.valid());  // NOLINT(bugprone-use-after-move,clang-analyzer-cplusplus.Move): what this is about
  EXPECT_EQ(third.index(), -1);
  EXPECT_EQ(store_.used_bytes(), SlotBytes()) << "one slot, however many share it";
  SlotRef& alias = second;
  second = alias;
  EXPECT_TRUE(second.exclusive()) << "assigned to itself, it is what it was";
  const int32_t index = second.index();
  second = SlotRef();
  EXPECT_EQ(store_.used_bytes(), 0);
  EXPECT_EQ(std::move(Reserve(1)[0]).Take().index(), index) << "returned slots are taken again";
}

TEST_F(StateStoreTest, ASlotThatIsNotWantedBecomesTheClaimAgain) {
  Claims claims = Reserve(10);
  for (int round = 0; round < 50; ++round) {
    SlotRef slot = std::move(claims[3]).Take();
    EXPECT_FALSE(claims[3].valid());
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes());
    claims[3] = SlotClaim::Return(std::move(slot));
    ASSERT_TRUE(claims[3].valid());
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes());
  }
  std::set<int32_t> indices;
  std::vector<SlotRef> slots;
  for (SlotClaim& claim : claims) indices.insert(slots.emplace_back(std::move(claim).Take()).index());
  EXPECT_EQ(indices.size(), 10u);
  EXPECT_FALSE(store_.Reserve(kDims, 1).ok());
}

TEST_F(StateStoreTest, SparesAreFewAndComeBack) {
  const Claims claims = Reserve(1);
  auto first = claims[0].pool()->TakeSpare();
  auto second = claims[0].pool()->TakeSpare();
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = claims[0].pool()->TakeSpare();
  ExpectError(third.status(), absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  *first = SlotRef();
  EXPECT_TRUE(claims[0].pool()->TakeSpare().ok());
  EXPECT_EQ(store_.used_bytes(), SlotBytes()) << "spares are nobody's budget";
}

TEST_F(StateStoreTest, AnExchangeMovesTheClaimToTheSpare) {
  SlotRef slot = std::move(Reserve(1)[0]).Take();
  const std::shared_ptr<StatePool> pool = slot.pool();
  for (int round = 0; round < 20; ++round) {  // a spare that was not given back would be missed at the third
    GDN_ASSERT_OK_AND_ASSIGN(auto spare, pool->TakeSpare());
    const int32_t index = spare.index();
    pool->ExchangeSpare(slot, spare);
    slot = std::move(spare);
    EXPECT_EQ(slot.index(), index);
    EXPECT_EQ(store_.used_bytes(), SlotBytes());
  }
  auto first = pool->TakeSpare();
  auto second = pool->TakeSpare();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->index(), slot.index());
  EXPECT_NE(second->index(), slot.index());
  slot = SlotRef();
  EXPECT_EQ(store_.used_bytes(), 0) << "the claim went with the slot that had it";
  *first = SlotRef();
  *second = SlotRef();
  EXPECT_EQ(store_.used_bytes(), 0);
}

TEST_F(StateStoreTest, AReturnedSpareIsNoClaim) {
  const Claims claims = Reserve(1);
  EXPECT_FALSE(SlotClaim::Return(claims[0].pool()->TakeSpare().value()).valid());
  EXPECT_EQ(store_.used_bytes(), SlotBytes());
  const auto first = claims[0].pool()->TakeSpare();
  EXPECT_TRUE(claims[0].pool()->TakeSpare().ok());
}

TEST_F(StateStoreTest, ClaimsBesideOthersAreOfTheirPool) {
  const Claims first = Reserve(4);
  {
    GDN_ASSERT_OK_AND_ASSIGN(const auto beside, store_.ReserveIn(first[0].pool(), 6));
    for (const SlotClaim& claim : beside) EXPECT_EQ(claim.pool(), first[0].pool());
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes());
    const auto refused = store_.ReserveIn(first[0].pool(), 1);
    EXPECT_EQ(ErrorReason(refused.status()), reason::kStateBudgetExhausted);
    EXPECT_EQ(ErrorMetadata(refused.status()).at("available"), "1");
  }
  EXPECT_EQ(store_.used_bytes(), 4 * SlotBytes());
  const auto none = store_.ReserveIn(first[0].pool(), 0);
  ASSERT_TRUE(none.ok());
  EXPECT_TRUE(none->empty());
}

TEST_F(StateStoreTest, LayoutsHavePoolsOfTheirOwnUnderOneBudget) {
  const Claims a = Reserve(9);
  const Claims b = Reserve(1, kOtherDims);
  EXPECT_NE(a[0].pool(), b[0].pool());
  EXPECT_EQ(b[0].pool()->view().layout.dims(), kOtherDims);
  EXPECT_EQ(store_.used_bytes(), 9 * SlotBytes() + SlotBytes(kOtherDims));
  EXPECT_FALSE(store_.Reserve(kDims, 1).ok());
}

TEST_F(StateStoreTest, AnUnusedPoolStaysUntilAnotherIsMade) {
  std::weak_ptr<StatePool> pool;
  SlotRef share;
  {
    Claims claims = Reserve(2);
    pool = claims[0].pool();
    share = std::move(claims[0]).Take();
  }
  EXPECT_EQ(store_.used_bytes(), SlotBytes()) << "the slot is still there";
  share = SlotRef();
  EXPECT_EQ(store_.used_bytes(), 0);
  EXPECT_FALSE(pool.expired());
  EXPECT_EQ(Reserve(10)[0].pool(), pool.lock()) << "its memory is used again";
  const Claims other = Reserve(1, kOtherDims);
  EXPECT_TRUE(pool.expired()) << "another layout wants its memory";
}

TEST_F(StateStoreTest, ManyThreadsShareItAndLeaveNothingBehind) {
  constexpr int kThreads = 4;
  SlotRef everybodys = std::move(Reserve(1)[0]).Take();
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i, everybodys] {
      for (int round = 0; round < 500; ++round) {
        // NOLINTNEXTLINE(performance-unnecessary-copy-initialization): held as others come and go
        const SlotRef share = everybodys;
        GDN_ASSERT_OK_AND_ASSIGN(auto claims, store_.Reserve(i % 2 == 0 ? kDims : kOtherDims, 2));
        const std::shared_ptr<StatePool> pool = claims.front().pool();
        SlotRef slot = std::move(claims.front()).Take();
        const SlotRef other = std::move(claims.back()).Take();
        ASSERT_NE(slot.index(), other.index());
        pool->view().slot(slot.index())[0] = static_cast<float>(i);
        if (auto spare = pool->TakeSpare(); spare.ok()) {
          pool->ExchangeSpare(slot, *spare);
          slot = *std::move(spare);
        }
        pool->view().slot(slot.index())[0] = static_cast<float>(i);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(everybodys.exclusive());
  EXPECT_EQ(store_.used_bytes(), SlotBytes());
  everybodys = SlotRef();
  EXPECT_EQ(store_.used_bytes(), 0);
}

using StateStoreDeathTest = StateStoreTest;

TEST_F(StateStoreDeathTest, ASlotThatTwoShareIsNotGivenBack) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  SlotRef slot = std::move(Reserve(1)[0]).Take();
  const SlotRef other = slot;
  EXPECT_DEATH((void)SlotClaim::Return(std::move(slot)), "");
}

}  // namespace
}  // namespace gdn::state_store_test
