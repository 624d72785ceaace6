#include "server/shared_memory/shared_regions.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::shared_regions_test {
namespace {

constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kNotFound = absl::StatusCode::kNotFound;

class SharedRegionsTest : public testing::Test {
 protected:
  SharedMemoryOptions Options() const {
    return {.directory = folder_.path(),
            .bytes = 1000,
            .bytes_per_principal = 600,
            .regions_per_principal = 3,
            .regions = 4};
  }
  std::string NameOf(const std::string& principal, int64_t bytes) {
    return regions_.Open(principal, principal, bytes).value()->name();
  }
  absl::Status Refusal(const std::string& principal, int64_t bytes) {
    return regions_.Open(principal, principal, bytes).status();
  }

  const TempFolder folder_;
  SharedRegions regions_{Options()};
};

TEST_F(SharedRegionsTest, AreFoundByTheirPrincipalUntilTheyEnd) {
  GDN_ASSERT_OK_AND_ASSIGN(const SharedRegionPtr region, regions_.Open("a", "a", 100));
  GDN_ASSERT_OK_AND_ASSIGN(const SharedRegionPtr found, regions_.Find("a", region->name()));
  EXPECT_EQ(found, region);

  const absl::Status foreign = regions_.Find("b", region->name()).status();
  ExpectError(foreign, kNotFound, reason::kSharedRegionNotFound);
  ExpectError(regions_.Find("a", "gdn-shm-none").status(), kNotFound, reason::kSharedRegionNotFound);
  EXPECT_TRUE(regions_.End(region->name()));
  EXPECT_FALSE(regions_.End(region->name()));
  EXPECT_EQ(regions_.Find("a", region->name()).status(), foreign) << "nobody can tell them apart";
  EXPECT_FALSE(std::filesystem::exists(region->path()));
  EXPECT_TRUE(region->Write(0, "a call that uses it goes on").ok());
}

TEST_F(SharedRegionsTest, AreCountedUntilTheLastCallLeavesThem) {
  const std::string first = NameOf("a", 400);
  ExpectError(Refusal("a", 201), kExhausted, reason::kSharedMemoryExhausted, "a caller");
  EXPECT_EQ(ErrorMetadata(Refusal("a", 201)).at("available"), "200");
  const std::string second = NameOf("b", 600);
  ExpectError(Refusal("c", 1), kExhausted, reason::kSharedMemoryExhausted, "of all");
  EXPECT_EQ(regions_.used_bytes(), 1000);

  SharedRegionPtr used = regions_.Find("a", first).value();
  EXPECT_TRUE(regions_.End(first));
  EXPECT_EQ(regions_.used_bytes(), 1000);
  used = nullptr;
  EXPECT_EQ(regions_.used_bytes(), 600);
  EXPECT_TRUE(Refusal("c", 400).ok());
}

TEST_F(SharedRegionsTest, HaveALimitOfTheirNumber) {
  for (int i = 0; i < 3; ++i) NameOf("a", 1);
  ExpectError(Refusal("a", 1), kExhausted, reason::kSharedMemoryExhausted, "a caller");
  NameOf("b", 1);
  ExpectError(Refusal("c", 1), kExhausted, reason::kSharedMemoryExhausted, "of all");
}

TEST_F(SharedRegionsTest, InventedPrincipalsShareTheRoomOfTheirAccount) {
  std::vector<SharedRegionPtr> held;
  for (const char* principal : {"one", "two"}) {
    held.push_back(regions_.Open(principal, "peer 10.0.0.7", 300).value());
  }
  const auto refused = regions_.Open("three", "peer 10.0.0.7", 1);
  ExpectError(refused.status(), kExhausted, reason::kSharedMemoryExhausted, "a caller");
  EXPECT_TRUE(regions_.Find("one", held[0]->name()).ok());
  EXPECT_FALSE(regions_.Find("two", held[0]->name()).ok());
  EXPECT_TRUE(Refusal("listed", 400).ok());
}

TEST_F(SharedRegionsTest, NeedABytesCount) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}}) {
    ExpectError(Refusal("a", bytes), absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
  }
  EXPECT_EQ(regions_.used_bytes(), 0);
}

TEST_F(SharedRegionsTest, ARefusedFileIsNotCounted) {
  std::filesystem::remove_all(folder_.path());
  ExpectError(Refusal("a", 1), kExhausted, reason::kSharedMemoryExhausted);
  EXPECT_EQ(regions_.used_bytes(), 0);
}

TEST_F(SharedRegionsTest, DrainEndsAllAndRefusesMore) {
  const SharedRegionPtr region = regions_.Open("a", "a", 1).value();
  const std::string ended = NameOf("b", 1);
  EXPECT_TRUE(regions_.End(ended));
  EXPECT_EQ(regions_.drained().count(), 0u);
  regions_.Drain();
  EXPECT_EQ(regions_.drained().count(), 1u);
  EXPECT_FALSE(regions_.End(region->name()));
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  ExpectError(Refusal("a", 1), absl::StatusCode::kUnavailable, reason::kServerDraining);
}

TEST_F(SharedRegionsTest, AServerTakesAwayWhatAKilledOneLeft) {
  const std::string left = folder_.path() + "/" + std::string(kSharedRegionPrefix) + "left";
  const std::string other = folder_.path() + "/other";
  WriteFile(left, "x");
  WriteFile(other, "x");
  const SharedRegionPtr alive = regions_.Open("a", "a", 1).value();
  const SharedRegions next(Options());
  EXPECT_FALSE(std::filesystem::exists(left));
  EXPECT_TRUE(std::filesystem::exists(other));
  EXPECT_TRUE(std::filesystem::exists(alive->path())) << "its server lives";
}

TEST_F(SharedRegionsTest, AreNotOfferedWithoutAFolder) {
  EXPECT_TRUE(regions_.offered());
  for (const std::string& directory : {std::string(), folder_.path() + "/none"}) {
    SharedRegions none({.directory = directory});
    EXPECT_FALSE(none.offered());
    ExpectError(none.Open("a", "a", 1).status(), absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered);
  }
}

}  // namespace
}  // namespace gdn::shared_regions_test
