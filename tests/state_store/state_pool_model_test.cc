// Random sequences of everything that can be done with claims and slots, beside a model of who has what.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/null/null_backend.h"
#include "state_store/state_store.h"
#include "tests/support/random.h"

namespace gdn::state_pool_model_test {
namespace {

constexpr LayerDims kDims[] = {{.key_heads = 1, .value_heads = 1, .key_dim = 4, .value_dim = 4},
                               {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8}};
constexpr int32_t kMostSlots = 12;

// The model's view of one slot: how many share it, whether it is a spare, and its expected first float.
struct ModelSlot {
  int shares = 0;
  bool spare = false;
  float mark = 0.0f;
};

class Player {
 public:
  explicit Player(uint64_t seed) : random_(seed) {}

  void Play(int steps) {
    for (int step = 0; step < steps && !::testing::Test::HasFailure(); ++step) {
      constexpr void (Player::*kMoves[])() = {&Player::Reserve, &Player::GiveUp, &Player::Take,  &Player::ShareOne,
                                              &Player::DropOne, &Player::Aside,  &Player::Return};
      (this->*kMoves[random_.NextInt(0, static_cast<int32_t>(std::size(kMoves)) - 1)])();
      Check();
    }
    refs_.clear();
    claims_.clear();
    EXPECT_EQ(store_.used_bytes(), 0);
  }

 private:
  using Place = std::pair<const StatePool*, int32_t>;
  static Place PlaceOf(const SlotRef& ref) { return {ref.pool().get(), ref.index()}; }
  static int64_t Bytes(const StatePool& pool) { return pool.view().layout.slot_bytes(); }
  template <typename T>
  size_t Any(const std::vector<T>& from) {
    return static_cast<size_t>(random_.NextInt(0, static_cast<int32_t>(from.size()) - 1));
  }

  void Reserve() {
    const LayerDims& dims = kDims[random_.NextInt(0, 1)];
    const int32_t count = random_.NextInt(1, 3);
    const int64_t free = kBudget - expected_bytes_;
    const bool beside = !refs_.empty() && random_.NextInt(0, 1) == 0;
    const std::shared_ptr<StatePool> pool = beside ? refs_[Any(refs_)].pool() : nullptr;
    auto claims = beside ? store_.ReserveIn(pool, count) : store_.Reserve(dims, count);
    const int64_t needed = count * (beside ? Bytes(*pool) : StateLayout::Make(dims, 8)->slot_bytes());
    ASSERT_EQ(claims.ok(), needed <= free) << claims.status();
    if (!claims.ok()) return;
    expected_bytes_ += needed;
    for (SlotClaim& claim : *claims) claims_.push_back(std::move(claim));
  }

  void GiveUp() {
    if (claims_.empty()) return;
    const size_t i = Any(claims_);
    expected_bytes_ -= Bytes(*claims_[i].pool());
    claims_.erase(claims_.begin() + static_cast<std::ptrdiff_t>(i));
  }

  // A slot that nobody had, marked.
  void Own(SlotRef ref, bool spare) {
    ModelSlot& slot = slots_[PlaceOf(ref)];
    ASSERT_EQ(slot.shares, 0) << "the slot is somebody's";
    slot = {.shares = 1, .spare = spare, .mark = ++next_mark_};
    ref.view().slot(ref.index())[0] = slot.mark;
    if (spare) ++spares_[ref.pool().get()];
    refs_.push_back(std::move(ref));
  }

  void Take() {
    if (claims_.empty()) return;
    const size_t i = Any(claims_);
    SlotRef ref = std::move(claims_[i]).Take();
    claims_.erase(claims_.begin() + static_cast<std::ptrdiff_t>(i));
    Own(std::move(ref), /*spare=*/false);
  }

  void ShareOne() {
    if (refs_.empty()) return;
    SlotRef share = refs_[Any(refs_)];
    ++slots_[PlaceOf(share)].shares;
    refs_.push_back(std::move(share));
  }

  void Forget(size_t i) {
    ModelSlot& slot = slots_[PlaceOf(refs_[i])];
    if (--slot.shares > 0) return;
    if (slot.spare) {
      --spares_[refs_[i].pool().get()];
    } else {
      expected_bytes_ -= Bytes(*refs_[i].pool());
    }
  }

  void DropOne() {
    if (refs_.empty()) return;
    const size_t i = Any(refs_);
    Forget(i);
    refs_[i] = std::move(refs_.back());
    refs_.pop_back();
  }

  // A spare, and for a slot of one share now and then the exchange with it.
  void Aside() {
    if (refs_.empty()) return;
    const size_t i = Any(refs_);
    const std::shared_ptr<StatePool> pool = refs_[i].pool();
    auto spare = pool->TakeSpare();
    ASSERT_EQ(spare.ok(), spares_[pool.get()] < pool->spare_slots());
    if (!spare.ok()) return;
    Own(*std::move(spare), /*spare=*/true);
    if (!refs_[i].exclusive() || random_.NextInt(0, 1) == 0) return;
    pool->ExchangeSpare(refs_[i], refs_.back());
    std::swap(slots_[PlaceOf(refs_[i])].spare, slots_[PlaceOf(refs_.back())].spare);
  }

  void Return() {
    if (refs_.empty()) return;
    const size_t i = Any(refs_);
    if (!refs_[i].exclusive()) return;
    const bool spare = slots_[PlaceOf(refs_[i])].spare;
    const int64_t bytes = Bytes(*refs_[i].pool());
    Forget(i);
    SlotRef ref = std::move(refs_[i]);
    refs_.erase(refs_.begin() + static_cast<std::ptrdiff_t>(i));
    SlotClaim claim = SlotClaim::Return(std::move(ref));
    ASSERT_EQ(claim.valid(), !spare);
    if (spare) return;
    expected_bytes_ += bytes;
    claims_.push_back(std::move(claim));
  }

  void Check() {
    ASSERT_EQ(store_.used_bytes(), expected_bytes_);
    std::map<Place, int> shares;
    for (const SlotRef& ref : refs_) {
      ++shares[PlaceOf(ref)];
      ASSERT_EQ(ref.view().slot(ref.index())[0], slots_[PlaceOf(ref)].mark) << "somebody else wrote the slot";
    }
    for (const SlotRef& ref : refs_) ASSERT_EQ(ref.exclusive(), shares[PlaceOf(ref)] == 1);
    // A pool that goes takes its spares and its slots with it; another may be made at the same address.
    for (auto it = slots_.begin(); it != slots_.end();)
      it = shares.contains(it->first) ? std::next(it) : slots_.erase(it);
  }

  static inline const int64_t kBudget = kMostSlots * StateLayout::Make(kDims[1], 8)->slot_bytes();
  const std::unique_ptr<Backend> backend_ = MakeNullBackend();
  StateStore store_{*backend_, {.budget_bytes = kBudget, .max_draft = 8}};
  Random random_;
  int64_t expected_bytes_ = 0;
  float next_mark_ = 0.0f;
  std::map<Place, ModelSlot> slots_;
  std::map<const StatePool*, int> spares_;
  std::vector<SlotClaim> claims_;
  std::vector<SlotRef> refs_;
};

TEST(StatePoolModel, NoSlotHasTwoOwnersAndNothingLeaksOverRandomSequences) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    Player(seed).Play(3000);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace gdn::state_pool_model_test
