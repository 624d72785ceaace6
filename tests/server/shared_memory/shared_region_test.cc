#include "server/shared_memory/shared_region.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <limits>
#include <string>

#include "base/error.h"
#include "tests/support/assert_ok.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temp_folder.h"

namespace gdn::shared_region_test {
namespace {

constexpr int64_t kBytes = 10'000;
constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

class SharedRegionTest : public testing::Test {
 protected:
  const TempFolder folder_;
  std::unique_ptr<SharedRegion> region_ = SharedRegion::Make(folder_.path(), kBytes).value();
};

TEST_F(SharedRegionTest, IsAFileOfItsOwnerWithAllItsRoomTaken) {
  struct stat found {};
  ASSERT_EQ(lstat(region_->path().c_str(), &found), 0);
  EXPECT_TRUE(S_ISREG(found.st_mode));
  EXPECT_EQ(found.st_mode & ALLPERMS, S_IRUSR | S_IWUSR);
  EXPECT_EQ(found.st_size, kBytes);
  EXPECT_GE(found.st_blocks * 512, kBytes);
  EXPECT_EQ(region_->path(), folder_.path() + "/" + region_->name());
  EXPECT_EQ(region_->name().size(), kSharedRegionPrefix.size() + 32) << "128 random bits";

  const auto other = SharedRegion::Make(folder_.path(), kBytes).value();
  EXPECT_NE(other->name(), region_->name());
  region_ = nullptr;
  EXPECT_TRUE(std::filesystem::exists(other->path()));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1);
}

TEST_F(SharedRegionTest, CopiesBytesInAndOut) {
  ASSERT_TRUE(region_->Write(7, "tensor").ok());
  EXPECT_EQ(ReadFile(region_->path()).substr(6, 8), std::string("\0tensor\0", 8));
  std::string read(8, 'x');
  ASSERT_TRUE(region_->Read(6, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, std::string("\0tensor\0", 8));
  EXPECT_TRUE(region_->Read(kBytes, {}).ok());
}

TEST_F(SharedRegionTest, KnowsWhatIsInside) {
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{0, kBytes}, {kBytes, 0}, {0, 0}, {kBytes - 1, 1}}) {
    EXPECT_TRUE(region_->CheckRange(offset, bytes).ok()) << offset << " + " << bytes;
  }
  for (const auto& [offset, bytes] : {std::pair<int64_t, int64_t>{-1, 1},
                                      {0, -1},
                                      {0, kBytes + 1},
                                      {1, kBytes},
                                      {kBytes + 1, 0},
                                      {kBytes, 1},
                                      {1, kMost},
                                      {kMost, 1},
                                      {kMost, kMost},
                                      {-kMost - 1, -kMost - 1}}) {
    ExpectError(region_->CheckRange(offset, bytes), absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange,
                std::to_string(offset) + " + " + std::to_string(bytes));
  }
}

TEST_F(SharedRegionTest, SeesThatItsFileWasTruncated) {
  ASSERT_EQ(truncate(region_->path().c_str(), 100), 0);
  std::string read(100, 'x');
  EXPECT_TRUE(region_->CheckSize(100).ok());
  EXPECT_TRUE(region_->Read(0, absl::MakeSpan(read)).ok());
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  ExpectError(region_->CheckSize(101), kInvalid, reason::kSharedMemoryTruncated);
  ExpectError(region_->Read(1, absl::MakeSpan(read)), kInvalid, reason::kSharedMemoryTruncated);
  ExpectError(region_->Read(5000, absl::MakeSpan(read)), kInvalid, reason::kSharedMemoryTruncated);

  ASSERT_TRUE(region_->Write(5000, "there again").ok()) << "a write makes the file longer";
  read.resize(11);
  ASSERT_TRUE(region_->Read(5000, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, "there again");
}

TEST_F(SharedRegionTest, TellsThatTheSystemRefuses) {
  ASSERT_EQ(truncate(region_->path().c_str(), 0), 0);
  const auto kExhausted = absl::StatusCode::kResourceExhausted;
  {
    const FileSizeLimit limit(4096);
    ExpectError(region_->Write(4090, "across the limit"), kExhausted, reason::kSharedMemoryExhausted);
    ExpectError(SharedRegion::Make(folder_.path(), kBytes).status(), kExhausted, reason::kSharedMemoryExhausted);
  }
  ExpectError(SharedRegion::Make(folder_.path() + "/none", 1).status(), kExhausted, reason::kSharedMemoryExhausted);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_.path()), {}), 1) << "a refused one has gone";
}

TEST_F(SharedRegionTest, IsUsedOnWithoutItsName) {
  region_->Unlink();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path()));
  ASSERT_TRUE(region_->Write(0, "still").ok());
  std::string read(5, 'x');
  ASSERT_TRUE(region_->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, "still");
}

}  // namespace
}  // namespace gdn::shared_region_test
