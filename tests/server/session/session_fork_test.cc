// Families of forked sessions under random steps, beside a model of what each of them holds.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/server/session/session_test_support.h"
#include "tests/support/assert_ok.h"
#include "tests/support/random.h"

namespace gdn::session_fork_test {
namespace {

constexpr int kLayers = 2;
constexpr int kDeepest = 4;  // forks of forks
constexpr size_t kLargestFamily = 9;

class Family {
 public:
  explicit Family(uint64_t seed) : random_(seed) { Add(world_.MakeSession(OperatorSessionSpec(kLayers)), 0, {}); }

  void Play(int rounds) {
    for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
      Member& member = members_[static_cast<size_t>(random_.NextInt(0, static_cast<int32_t>(members_.size()) - 1))];
      const int layer = random_.NextInt(0, kLayers - 1);
      switch (random_.NextInt(0, 9)) {
        case 0:
        case 1:
          Fork(member);
          break;
        case 2:
          Delete(member);
          break;
        case 3:
          StepAside(member, layer);
          break;
        case 4:
          Abandon(member, layer);
          break;
        case 5:
          StepInPlace(member, layer, /*fold=*/true);
          break;
        default:
          StepInPlace(member, layer, /*fold=*/false);
          break;
      }
      Check();
    }
    members_.clear();
    EXPECT_EQ(world_.store.used_bytes(), 0);
    EXPECT_EQ(world_.environment.replies().bytes(), 0);
  }

 private:
  struct Member {
    std::shared_ptr<Session> session;
    int depth = 0;
    std::vector<Contents> contents;  // by layer
  };

  void Add(std::shared_ptr<Session> session, int depth, std::vector<Contents> contents) {
    contents.resize(kLayers);
    members_.push_back({.session = std::move(session), .depth = depth, .contents = std::move(contents)});
  }

  // True if another member, or another layer of the writer, reads this slot.
  bool OthersRead(const Member& writer, int layer, const StatePool* pool, int32_t slot) const {
    for (const Member& member : members_) {
      for (int other = 0; other < kLayers; ++other) {
        if (&member == &writer && other == layer) continue;
        const SessionPin pin = PinOf(member.session);
        const auto admission = member.session->Admit(pin.Another(), PlainStep(other), nullptr);
        if (!admission.ok() || admission->lease.fresh() || admission->lease.pool().get() != pool) continue;
        if (admission->lease.slot() == slot || admission->lease.base_slot() == slot) return true;
      }
    }
    return false;
  }

  void StepInPlace(Member& member, int layer, bool fold) {
    {
      StepLease look = AdmitStep(member.session, PlainStep(layer));
      ASSERT_TRUE(look.valid());
      const std::shared_ptr<StatePool> pool = look.pool();
      GDN_ASSERT_OK_AND_ASSIGN(const auto slots, look.PrepareDecode());
      ASSERT_FALSE(OthersRead(member, layer, pool.get(), slots.slot));
    }
    Contents& contents = member.contents[static_cast<size_t>(layer)];
    const bool fresh = AdmitStep(member.session, PlainStep(layer)).fresh();
    const Contents to{.base = fold ? ++next_ : (fresh ? 0.0f : contents.base), .tail = ++next_};
    const absl::Status status = Decode(AdmitStep(member.session, PlainStep(layer)), to, fold);
    ASSERT_TRUE(status.ok()) << status;
    contents = to;
  }

  void StepAside(Member& member, int layer) {
    Contents& contents = member.contents[static_cast<size_t>(layer)];
    contents = {.base = ++next_, .tail = ++next_};
    const absl::Status status = Prefill(AdmitStep(member.session, PlainStep(layer)), contents);
    ASSERT_TRUE(status.ok()) << status;
  }

  void Abandon(Member& member, int layer) {
    StepLease lease = AdmitStep(member.session, PlainStep(layer));
    if (random_.NextInt(0, 1) == 0) {
      ASSERT_TRUE(lease.PrepareDecode().ok());
    } else {
      ASSERT_TRUE(lease.PrepareAside().ok());
    }
    const bool cancel = random_.NextInt(0, 1) == 0;
    EXPECT_TRUE(!cancel || lease.TryCancel());
  }

  void Fork(Member& member) {
    if (member.depth == kDeepest || members_.size() >= kLargestFamily) return;
    const int depth = member.depth + 1;
    const std::vector<Contents> contents = member.contents;
    const int children = random_.NextInt(1, 2);
    SessionLease lease = member.session->TryLock();
    ASSERT_TRUE(lease.valid());
    for (int i = 0; i < children; ++i) {
      GDN_ASSERT_OK_AND_ASSIGN(auto child, world_.Fork(lease, std::to_string(++forks_)));
      Add(std::move(child), depth, contents);  // `member` may have moved
    }
  }

  void Delete(Member& member) {
    if (members_.size() == 1) return;
    member.session->TryLock().MarkDeleted();
    std::swap(member, members_.back());
    members_.pop_back();
  }

  void Check() {
    std::set<std::pair<const float*, int32_t>> slots;
    for (const Member& member : members_) {
      const SessionLease lease = member.session->TryLock();
      ASSERT_TRUE(lease.valid());
      for (size_t layer = 0; layer < kLayers; ++layer) {
        ASSERT_EQ(ReadContents(lease, layer), member.contents[layer]) << "sessions/" << member.session->id();
        const LayerSlots at = lease.slots(layer);
        if (at.slot < 0) continue;
        slots.insert({at.pool->data, at.slot});
        slots.insert({at.pool->data, at.base_slot});
      }
    }
    const int64_t used = world_.store.used_bytes() / SessionWorld::SlotBytes(OperatorSessionSpec());
    ASSERT_GE(used, static_cast<int64_t>(slots.size())) << "every slot in use is paid for";
    // One of its own, one shared base and one set aside at most, for each layer of each member, however deep the forks.
    ASSERT_LE(used, static_cast<int64_t>(3 * kLayers * members_.size()));
  }

  SessionWorld world_{int64_t{1} << 20};
  Random random_;
  float next_ = 0.0f;
  int forks_ = 0;
  std::vector<Member> members_;
};

TEST(SessionFork, NoStepOfAFamilyEverFailsForWantOfASlotOrWritesASharedOne) {
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    SCOPED_TRACE(seed);
    Family(seed).Play(600);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace gdn::session_fork_test
