#include "state_store/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/null/null_backend.h"

namespace gdn {
namespace {

const LayerDims kDims{.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8};
const LayerDims kOtherDims{.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 4};

class StateStoreTest : public ::testing::Test {
 protected:
  static int64_t SlotBytes(const LayerDims& dims = kDims) { return StateLayout::Make(dims, 8)->slot_bytes(); }

  const std::unique_ptr<Backend> backend_ = MakeNullBackend();
  StateStore store_{*backend_, {.budget_bytes = 10 * SlotBytes() + 1, .max_draft = 8}};
};

TEST_F(StateStoreTest, ReservationsCountAgainstTheBudgetUntilTheyEnd) {
  EXPECT_EQ(store_.used_bytes(), 0);
  {
    auto first = store_.Reserve(kDims, 6);
    ASSERT_TRUE(first.ok()) << first.status();
    EXPECT_EQ(first->count(), 6);
    EXPECT_EQ(first->bytes(), 6 * SlotBytes());
    EXPECT_EQ(store_.used_bytes(), 6 * SlotBytes());
    auto second = store_.Reserve(kDims, 4);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes());

    SlotReservation moved = *std::move(first);
    EXPECT_EQ(store_.used_bytes(), 10 * SlotBytes()) << "a move is no end";
    moved = *std::move(second);
    EXPECT_EQ(store_.used_bytes(), 4 * SlotBytes()) << "assignment ends what was there";
  }
  EXPECT_EQ(store_.used_bytes(), 0);
}

TEST_F(StateStoreTest, AnOverdraftIsRefusedAndTakesNothing) {
  const auto held = store_.Reserve(kDims, 6);
  const auto refused = store_.Reserve(kDims, 5);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(refused.status()), reason::kStateBudgetExhausted);
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
  auto a = store_.Reserve(kDims, 7);
  auto b = store_.Reserve(kDims, 3);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_EQ(a->pool(), b->pool()) << "one layout, one pool";
  std::vector<SlotLease> leases;
  for (int i = 0; i < 7; ++i) leases.push_back(a->Take());
  for (int i = 0; i < 3; ++i) leases.push_back(b->Take());
  for (int i = 0; i < 2; ++i) leases.push_back(*b->TakeSpare());
  std::set<int32_t> indices;
  for (const SlotLease& lease : leases) {
    EXPECT_TRUE(lease.valid());
    EXPECT_GE(lease.index(), 0);
    EXPECT_LT(lease.index(), a->view().slot_count);
    indices.insert(lease.index());
    a->view().slot(lease.index())[0] = 1.0f;
    a->view().slot(lease.index())[a->view().layout.slot_floats() - 1] = 1.0f;
  }
  EXPECT_EQ(indices.size(), leases.size()) << "every slot is somebody's own";
}

TEST_F(StateStoreTest, ReturnedSlotsAreTakenAgain) {
  const auto slots = store_.Reserve(kDims, 10);
  std::set<int32_t> indices;
  for (int round = 0; round < 50; ++round) {
    std::vector<SlotLease> leases;
    for (int i = 0; i < 10; ++i) {
      leases.push_back(slots->Take());
      indices.insert(leases.back().index());
    }
  }
  EXPECT_LE(indices.size(), 10u);
}

TEST_F(StateStoreTest, ALeaseThatWasMovedFromOrReleasedHoldsNothing) {
  const auto slots = store_.Reserve(kDims, 2);
  SlotLease lease = slots->Take();
  const int32_t index = lease.index();
  SlotLease moved = std::move(lease);
  EXPECT_FALSE(lease.valid());
  EXPECT_EQ(lease.index(), -1);
  EXPECT_EQ(moved.index(), index);
  moved.Release();
  moved.Release();
  EXPECT_FALSE(moved.valid());
  EXPECT_EQ(slots->Take().index(), index);
}

TEST_F(StateStoreTest, SparesAreFewAndComeBack) {
  const auto slots = store_.Reserve(kDims, 1);
  auto first = slots->TakeSpare();
  auto second = slots->TakeSpare();
  ASSERT_TRUE(first.ok() && second.ok());
  const auto third = slots->TakeSpare();
  EXPECT_EQ(third.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(third.status()), reason::kStateBudgetExhausted);
  first->Release();
  EXPECT_TRUE(slots->TakeSpare().ok());
  EXPECT_EQ(store_.used_bytes(), SlotBytes()) << "spares are nobody's budget";
}

TEST_F(StateStoreTest, ASwapPutsTheSpareInPlaceAndReturnsTheOldSlotAsTheSpare) {
  const auto slots = store_.Reserve(kDims, 1);
  SlotLease taken = slots->Take();
  const int32_t old_index = taken.index();
  for (int round = 0; round < 20; ++round) {  // a spare that was not given back would be missed at the third
    auto spare = slots->TakeSpare();
    ASSERT_TRUE(spare.ok()) << spare.status();
    const int32_t spare_index = spare->index();
    SlotReservation::Swap(taken, *std::move(spare));
    EXPECT_EQ(taken.index(), spare_index);
  }
  auto first = slots->TakeSpare();
  auto second = slots->TakeSpare();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->index(), taken.index());
  EXPECT_NE(second->index(), taken.index());
  first->Release();
  second->Release();
  taken.Release();
  EXPECT_GE(old_index, 0);
  const SlotLease again = slots->Take();  // and the reservation's one slot is free again
  EXPECT_TRUE(again.valid());
}

TEST_F(StateStoreTest, LayoutsHavePoolsOfTheirOwnUnderOneBudget) {
  const auto a = store_.Reserve(kDims, 9);
  const auto b = store_.Reserve(kOtherDims, 1);
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(a->pool(), b->pool());
  EXPECT_EQ(b->view().layout.dims(), kOtherDims);
  EXPECT_EQ(store_.used_bytes(), 9 * SlotBytes() + SlotBytes(kOtherDims));
  EXPECT_FALSE(store_.Reserve(kDims, 1).ok());
}

TEST_F(StateStoreTest, APoolGoesWithItsLastReservationAndLease) {
  std::weak_ptr<StatePool> pool;
  SlotLease lease;
  {
    const auto slots = store_.Reserve(kDims, 1);
    pool = slots->pool();
    lease = slots->Take();
  }
  EXPECT_EQ(store_.used_bytes(), 0);
  EXPECT_FALSE(pool.expired()) << "the lease still has its slot";
  lease.Release();
  EXPECT_TRUE(pool.expired());
  EXPECT_TRUE(store_.Reserve(kDims, 1).ok());
}

TEST_F(StateStoreTest, ManyThreadsShareItAndLeaveNothingBehind) {
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([this, i] {
      for (int round = 0; round < 200; ++round) {
        auto slots = store_.Reserve(i % 2 == 0 ? kDims : kOtherDims, 2);
        ASSERT_TRUE(slots.ok()) << slots.status();
        SlotLease lease = slots->Take();
        const SlotLease other = slots->Take();
        ASSERT_NE(lease.index(), other.index());
        slots->view().slot(lease.index())[0] = static_cast<float>(i);
        if (auto spare = slots->TakeSpare(); spare.ok()) SlotReservation::Swap(lease, *std::move(spare));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store_.used_bytes(), 0);
}

using StateStoreDeathTest = StateStoreTest;

TEST_F(StateStoreDeathTest, ABrokenReservationEndsTheProcessBeforeMemoryIsOverrun) {
  ::testing::FLAGS_gtest_death_test_style = "threadsafe";
  StateStore one(*backend_, {.budget_bytes = SlotBytes(), .max_draft = 8});
  const auto slots = one.Reserve(kDims, 1);
  const SlotLease own = slots->Take();
  const SlotLease first_spare = *slots->TakeSpare();
  const SlotLease second_spare = *slots->TakeSpare();
  EXPECT_DEATH((void)slots->Take(), "");
}

}  // namespace
}  // namespace gdn
