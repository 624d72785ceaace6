// A DiskTier in a folder of its own, for a test.
//
//   ASSERT_TRUE(Store(kKey, session).ok());
//   Open();  // opens the folder again, as another process would
//   ExpectSame(TakeApart(**tier_->Load(kKey)), session);
#pragma once

#include <memory>
#include <string>

#include "gtest/gtest.h"
#include "state_store/tiers/disk/disk_tier.h"
#include "tests/state_store/test_image.h"
#include "tests/support/temp_folder.h"

namespace gdn {

class DiskTierFixture : public ::testing::Test {
 protected:
  DiskTierFixture() { Open(); }

  // Opens the tier again, so that it knows only the contents of the folder.
  void Open(int64_t limit_bytes = 0) { Open(path_, limit_bytes); }
  void Open(const std::string& path, int64_t limit_bytes) {
    tier_.reset();
    auto tier = DiskTier::Open({.directory = path, .limit_bytes = limit_bytes, .max_draft = 8}, memory_.host);
    ASSERT_TRUE(tier.ok()) << tier.status();
    tier_ = *std::move(tier);
  }
  absl::StatusOr<StoreResult> Store(const StateKey& key, const TestSession& session) {
    return tier_->Store(key, MakeImage(session, memory_.host));
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/tier";
  TestMemory memory_;
  std::unique_ptr<DiskTier> tier_;
};

}  // namespace gdn
