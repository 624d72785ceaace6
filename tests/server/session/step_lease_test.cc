// Steps read and write the right slots, before and after forks.
#include "server/session/step_lease.h"

#include <gtest/gtest.h>

#include <memory>

#include "base/error.h"
#include "tests/server/session/session_test_support.h"
#include "tests/support/assert_ok.h"

namespace gdn::step_lease_test {
namespace {

class StepLeaseTest : public ::testing::Test {
 protected:
  std::shared_ptr<Session> Fork(const std::shared_ptr<Session>& parent, const std::string& id) {
    SessionLease lease = parent->TryLock();
    auto child = world_.Fork(lease, id);
    EXPECT_TRUE(child.ok()) << child.status();
    return child.value_or(nullptr);
  }
  static Contents Read(const std::shared_ptr<Session>& session) { return ReadContents(session->TryLock(), 0); }
  int64_t Slots() const { return world_.store.used_bytes() / SessionWorld::SlotBytes(OperatorSessionSpec()); }

  SessionWorld world_;
  std::shared_ptr<Session> session_ = world_.MakeSession(OperatorSessionSpec());
};

TEST_F(StepLeaseTest, TheFirstStepZeroesASlotAndLaterOnesWorkInPlace) {
  StepLease lease = AdmitStep(session_);
  GDN_ASSERT_OK_AND_ASSIGN(const auto fresh, lease.PrepareDecode());
  EXPECT_TRUE(fresh.zero);
  EXPECT_EQ(fresh.base_slot, fresh.slot);
  EXPECT_EQ(fresh.copy_tail_from, -1);
  ASSERT_NE(lease.pool(), nullptr) << "also once the claim has become a slot";
  EXPECT_EQ(lease.pool()->view().layout.dims(), session_->spec().dims);
  lease.Commit({.after = {.token_count = 1, .log_length = 1}, .base_written = true}, nullptr);

  lease = AdmitStep(session_);
  GDN_ASSERT_OK_AND_ASSIGN(const auto next, lease.PrepareDecode());
  EXPECT_EQ(next.slot, fresh.slot);
  EXPECT_EQ(next.base_slot, fresh.slot);
  EXPECT_EQ(next.copy_tail_from, -1);
  EXPECT_FALSE(next.zero);
  EXPECT_EQ(Slots(), 1);
}

TEST_F(StepLeaseTest, AStepAsideTakesASpareAndGivesTheOldSlotBack) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 1}, /*fold=*/true).ok());
  for (int round = 0; round < 20; ++round) {
    StepLease lease = AdmitStep(session_);
    const int32_t before = lease.slot();
    GDN_ASSERT_OK_AND_ASSIGN(const auto aside, lease.PrepareAside());
    EXPECT_NE(aside, before);
    EXPECT_EQ(lease.slot(), before) << "what it reads";
    if (round % 2 == 0) continue;  // dropped: the spare is free again
    lease.Commit({.after = {.token_count = round}, .base_written = true}, nullptr);
    EXPECT_EQ(AdmitStep(session_).slot(), aside);
    EXPECT_EQ(Slots(), 1);
  }
}

TEST_F(StepLeaseTest, WithoutASpareAStepAsideIsRefusedAndNothingMoves) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 1}, /*fold=*/true).ok());
  const std::shared_ptr<StatePool> pool = AdmitStep(session_).pool();
  std::vector<absl::StatusOr<SlotRef>> spares;
  while (static_cast<int32_t>(spares.size()) < pool->spare_slots()) spares.push_back(pool->TakeSpare());
  StepLease lease = AdmitStep(session_);
  EXPECT_EQ(ErrorReason(lease.PrepareAside().status()), reason::kStateBudgetExhausted);
  lease = StepLease();
  EXPECT_EQ(Read(session_), (Contents{1, 1}));
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 2, .tail = 2}).ok());
}

TEST_F(StepLeaseTest, AForkSharesTheSlotUntilASideWrites) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 2}, /*fold=*/true).ok());
  const auto child = Fork(session_, "b");
  EXPECT_EQ(Slots(), 3) << "the shared one, and one set aside for each side";
  EXPECT_EQ(AdmitStep(child).slot(), AdmitStep(session_).slot());
  EXPECT_EQ(child->Layers()[0].progress, session_->Layers()[0].progress);
  EXPECT_EQ(child->Layers()[0].kind, InputKind::kDeltaRule);

  for (const auto& side : {child, session_}) {
    SCOPED_TRACE(side->id());
    StepLease lease = AdmitStep(side);
    const int32_t shared = lease.slot();
    GDN_ASSERT_OK_AND_ASSIGN(const auto slots, lease.PrepareDecode());
    if (side == child) {
      EXPECT_NE(slots.slot, shared);
      EXPECT_EQ(slots.copy_tail_from, shared);
      EXPECT_EQ(slots.base_slot, shared);
    }
  }
  ASSERT_TRUE(Decode(AdmitStep(child), {.tail = 3}).ok());
  EXPECT_EQ(Read(child), (Contents{1, 3}));
  EXPECT_EQ(Read(session_), (Contents{1, 2}));
  ASSERT_TRUE(Decode(AdmitStep(session_), {.tail = 4}).ok());
  EXPECT_EQ(Read(child), (Contents{1, 3}));
  EXPECT_EQ(Read(session_), (Contents{1, 4}));
  {
    const StepLease a = AdmitStep(child);
    const StepLease b = AdmitStep(session_);
    EXPECT_EQ(a.base_slot(), b.base_slot()) << "the base is still one";
    EXPECT_NE(a.slot(), b.slot());
  }
  ASSERT_TRUE(Decode(AdmitStep(child), {.base = 5, .tail = 5}, /*fold=*/true).ok());
  EXPECT_EQ(Read(child), (Contents{5, 5}));
  EXPECT_EQ(Read(session_), (Contents{1, 4}));
  const StepLease folded = AdmitStep(child);
  EXPECT_EQ(folded.base_slot(), folded.slot()) << "a fold makes the base its own";
}

TEST_F(StepLeaseTest, WhatWasSetAsideIsGivenUpOnceNothingIsShared) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 2}, /*fold=*/true).ok());
  auto child = Fork(session_, "b");
  ASSERT_TRUE(Prefill(AdmitStep(child), {.base = 7, .tail = 7}).ok());
  EXPECT_EQ(Slots(), 3) << "the parent does not know yet that the slot is its own again";
  ASSERT_TRUE(Decode(AdmitStep(session_), {.tail = 3}).ok());
  EXPECT_EQ(Slots(), 2);
  EXPECT_EQ(Read(session_), (Contents{1, 3}));
  EXPECT_EQ(Read(child), (Contents{7, 7}));
  child.reset();
  EXPECT_EQ(Slots(), 1);
  session_.reset();
  EXPECT_EQ(Slots(), 0);
}

TEST_F(StepLeaseTest, AnAbandonedFirstStepOfAForkGivesItsSlotBack) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 2}, /*fold=*/true).ok());
  const auto child = Fork(session_, "b");
  for (int i = 0; i < 5; ++i) {
    StepLease decode = AdmitStep(child);
    ASSERT_TRUE(decode.PrepareDecode().ok());
    decode = StepLease();
    StepLease aside = AdmitStep(child);
    ASSERT_TRUE(aside.PrepareAside().ok());
    EXPECT_TRUE(aside.TryCancel());
  }
  EXPECT_EQ(Slots(), 3);
  EXPECT_EQ(Read(child), (Contents{1, 2}));
  ASSERT_TRUE(Decode(AdmitStep(child), {.tail = 3}).ok());
}

TEST_F(StepLeaseTest, ALayerThatIsFreshWhenForkedIsFreshOnBothSides) {
  const auto child = Fork(session_, "b");
  EXPECT_EQ(Slots(), 2) << "nothing is shared, so nothing is set aside";
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 2}, /*fold=*/true).ok());
  EXPECT_TRUE(AdmitStep(child).fresh());
  ASSERT_TRUE(Decode(AdmitStep(child), {.base = 3, .tail = 4}, /*fold=*/true).ok());
  EXPECT_EQ(Read(session_), (Contents{1, 2}));
  EXPECT_EQ(Slots(), 2);
}

TEST_F(StepLeaseTest, SeveralChildrenAreForkedUnderOneLease) {
  ASSERT_TRUE(Decode(AdmitStep(session_), {.base = 1, .tail = 2}, /*fold=*/true).ok());
  std::vector<std::shared_ptr<Session>> family{session_};
  {
    SessionLease lease = session_->TryLock();
    EXPECT_EQ(lease.claims_to_share(), 1);
    for (int i = 0; i < 4; ++i) {
      family.push_back(world_.Fork(lease, std::to_string(i)).value());
      EXPECT_EQ(lease.claims_to_share(), 0);
    }
  }
  EXPECT_EQ(Slots(), 6);
  float next = 10;
  for (const auto& member : family) ASSERT_TRUE(Decode(AdmitStep(member), {.tail = ++next}).ok());
  next = 10;
  for (const auto& member : family) EXPECT_EQ(Read(member), (Contents{1, ++next}));
}

}  // namespace
}  // namespace gdn::step_lease_test
