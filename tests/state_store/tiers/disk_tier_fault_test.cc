// Every system call of a Store fails in turn, with EIO and ENOSPC: the old state, the new one or a clear error.
//
// Run under `fiu-run -x`, which puts libfiu between this program and the C library.
#define FIU_ENABLE 1  // else fiu.h leaves nothing of its calls
#include <fcntl.h>
#include <fiu-control.h>
#include <fiu.h>

#include <cerrno>
#include <set>

#include "base/error.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"

namespace gdn::disk_tier_fault_test {
namespace {

const StateKey kKey{.principal = "", .id = "s", .checkpoint = ""};

// Which calls of the failure point fail: the one after `skip` others.
struct Plan {
  int skip = 0;
  int calls = 0;
  int failed = 0;
} plan;

int FailByPlan(const char* /*name*/, int* /*failnum*/, void** /*failinfo*/, unsigned int* /*flags*/) {
  const bool now = plan.calls++ == plan.skip;
  plan.failed += now;
  return now;
}

void* AsInfo(int error) { return reinterpret_cast<void*>(static_cast<intptr_t>(error)); }

constexpr const char* kPoints[] = {"posix/io/oc/open",          "posix/io/oc/close",   "posix/io/rw/pwritev",
                                   "posix/io/sync/fsync",       "posix/io/dir/rename", "posix/io/dir/unlink",
                                   "posix/io/rw/pwritev/reduce"};

class DiskTierFaults : public DiskTierFixture {
 protected:
  static void SetUpTestSuite() {
    ASSERT_EQ(fiu_init(0), 0);
    // Without the preloaded half nothing would ever fail, and these tests would prove nothing.
    ASSERT_EQ(fiu_enable("posix/io/oc/open", 1, AsInfo(EIO), 0), 0);
    const int fd = open("/dev/null", O_RDONLY);
    const int error = errno;
    fiu_disable("posix/io/oc/open");
    ASSERT_EQ(fd, -1) << "run this program under: fiu-run -x";
    ASSERT_EQ(error, EIO);
  }

  absl::Status Store(int64_t step) { return DiskTierFixture::Store(kKey, MakeStep(step)).status(); }
  static void ExpectClear(const absl::Status& status, const std::string& what) {
    const bool full =
        status.code() == absl::StatusCode::kResourceExhausted && ErrorReason(status) == reason::kStateBudgetExhausted;
    const bool unavailable =
        status.code() == absl::StatusCode::kUnavailable && ErrorReason(status) == reason::kTierUnavailable;
    EXPECT_TRUE(full || unavailable) << what << ": " << status;
    EXPECT_EQ(ErrorMetadata(status)["tier"], "disk") << what;
    EXPECT_NE(ErrorMetadata(status)["path"], "") << what;
  }
  // The number of the state that is there, whole.
  int64_t Stored(const std::string& what) {
    const auto image = tier_->Load(kKey);
    EXPECT_TRUE(image.ok()) << what << ": " << image.status();
    if (!image.ok()) return -1;
    const int64_t found = (*image)->header.epoch - 1;
    EXPECT_TRUE(SameStates(TakeApart(**image), MakeStep(found))) << what;
    return found;
  }
};

TEST_F(DiskTierFaults, OneFailedCallOfAStoreLeavesTheOldOrTheNewState) {
  int faults = 0;
  for (const char* point : kPoints) {
    for (const int error : {EIO, ENOSPC}) {
      for (int skip = 0; skip < 4; ++skip) {
        // A first delta, a delta over a delta, a whole file, a whole file over a delta.
        for (const std::vector<int64_t>& steps : {std::vector<int64_t>{0, 1}, {0, 1, 2}, {0, 8}, {0, 1, 8}}) {
          const std::string what = std::string(point) + ", errno " + std::to_string(error) + ", call " +
                                   std::to_string(skip) + ", store of step " + std::to_string(steps.back());
          ASSERT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
          for (size_t i = 0; i + 1 < steps.size(); ++i) ASSERT_TRUE(Store(steps[i]).ok());
          plan = {.skip = skip};
          ASSERT_EQ(fiu_enable_external(point, 1, AsInfo(error), 0, FailByPlan), 0);
          const absl::Status status = Store(steps.back());
          fiu_disable(point);
          faults += plan.failed;
          const int64_t before = steps[steps.size() - 2];
          if (!status.ok()) ExpectClear(status, what);
          for (const bool reopened : {false, true}) {
            if (reopened) Open();  // another process finds the same
            const int64_t found = Stored(what);
            EXPECT_TRUE(found == steps.back() || (!status.ok() && found == before)) << what << ": state " << found;
          }
          EXPECT_TRUE(Store(steps.back() + 1).ok()) << what;
          EXPECT_EQ(Stored(what), steps.back() + 1);
        }
      }
    }
  }
  EXPECT_GT(faults, 50);
}

// Nothing is done after the call that fails, as after a SIGKILL before it.
TEST_F(DiskTierFaults, AnErasureThatIsCutShortLeavesASessionWithItsCheckpointsOrNothing) {
  int faults = 0;
  for (const char* point :
       {"posix/io/dir/rename", "posix/io/dir/unlink", "posix/io/dir/rmdir", "posix/io/sync/fsync"}) {
    for (int skip = 0; skip < 6; ++skip) {
      const std::string what = std::string(point) + ", call " + std::to_string(skip);
      std::set<StateKey> all = {kKey};
      for (const char* name : {"one", "two"}) {
        all.insert({.principal = kKey.principal, .id = kKey.id, .checkpoint = name});
      }
      for (const StateKey& key : all) ASSERT_TRUE(DiskTierFixture::Store(key, MakeStep(1)).ok());
      ASSERT_TRUE(Store(2).ok());  // a delta
      plan = {.skip = skip};
      ASSERT_EQ(fiu_enable_external(point, 1, AsInfo(EIO), 0, FailByPlan), 0);
      const absl::Status status = tier_->Erase(kKey, /*all=*/true);
      fiu_disable(point);
      faults += plan.failed;
      if (!status.ok()) ExpectClear(status, what);
      Open();
      const auto listed = tier_->List();
      ASSERT_TRUE(listed.ok()) << what << ": " << listed.status();
      std::set<StateKey> found;
      for (const StoredSession& stored : *listed) found.insert(stored.key);
      EXPECT_TRUE(found.empty() || (!status.ok() && found == all)) << what << ": " << found.size() << " of 3 are left";
      EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok()) << what;
      EXPECT_TRUE(tier_->List()->empty()) << what;
    }
  }
  EXPECT_GT(faults, 5);
}

// The session goes on where its end is refused, and its next checkpoint must not be a delta to what has gone.
TEST_F(DiskTierFaults, AfterAnErasureThatFailedAStoreIsWhole) {
  int faults = 0;
  for (const char* point : {"posix/io/dir/rename", "posix/io/dir/unlink", "posix/io/sync/fsync"}) {
    for (int skip = 0; skip < 4; ++skip) {
      const std::string what = std::string(point) + ", call " + std::to_string(skip);
      ASSERT_TRUE(Store(0).ok() && Store(1).ok());
      plan = {.skip = skip};
      ASSERT_EQ(fiu_enable_external(point, 1, AsInfo(EIO), 0, FailByPlan), 0);
      const absl::Status status = tier_->Erase(kKey, /*all=*/true);
      fiu_disable(point);
      faults += plan.failed;
      ASSERT_TRUE(Store(2).ok()) << what;
      EXPECT_EQ(Stored(what), 2);
      Open();
      EXPECT_EQ(Stored(what), 2);
    }
  }
  EXPECT_GT(faults, 3);
}

TEST_F(DiskTierFaults, RandomFaultsNeverLoseAnAcknowledgedState) {
  constexpr int kSteps = 300;
  for (const unsigned seed : {1u, 2u, 3u}) {
    fiu_set_prng_seed(seed);
    ASSERT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
    ASSERT_TRUE(Store(0).ok());
    std::set<int64_t> allowed = {0};
    int failed = 0;
    for (int64_t step = 1; step <= kSteps; ++step) {
      for (const char* point : kPoints) {
        ASSERT_EQ(fiu_enable_random(point, 1, AsInfo(step % 2 == 0 ? EIO : ENOSPC), 0, 0.05f), 0);
      }
      const absl::Status status = Store(step);
      for (const char* point : kPoints) fiu_disable(point);
      const std::string what = "seed " + std::to_string(seed) + ", step " + std::to_string(step);
      if (status.ok()) {
        allowed = {step};
      } else {
        ++failed;
        ExpectClear(status, what);
        allowed.insert(step);
      }
      if (step % 10 == 0) Open();  // another process finds the same
      const int64_t found = Stored(what);
      EXPECT_EQ(allowed.count(found), 1u) << what << ": state " << found;
      allowed = {found};  // no way back from what was seen
    }
    EXPECT_GT(failed, 0);
    EXPECT_LT(failed, kSteps);
  }
}

TEST_F(DiskTierFaults, FailedReadsAreClearAndLoseNothing) {
  ASSERT_TRUE(Store(0).ok());
  ASSERT_TRUE(Store(1).ok());
  for (const char* point : {"posix/io/oc/open", "posix/io/rw/pread"}) {
    for (int skip = 0; skip < 2; ++skip) {
      plan = {.skip = skip};
      ASSERT_EQ(fiu_enable_external(point, 1, AsInfo(EIO), 0, FailByPlan), 0);
      const absl::Status status = tier_->Load(kKey).status();
      fiu_disable(point);
      EXPECT_EQ(plan.failed, 1);
      ExpectClear(status, point);
      EXPECT_EQ(Stored(point), 1);
    }
  }
}

}  // namespace
}  // namespace gdn::disk_tier_fault_test
