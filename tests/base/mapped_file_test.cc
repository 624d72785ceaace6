#include "base/mapped_file.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const auto* test = ::testing::UnitTest::GetInstance()->current_test_info();
    folder_ = std::filesystem::path(::testing::TempDir()) / (std::string("gdn_mapped_file_") + test->name());
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& bytes) {
    std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << bytes;
    return path;
  }

  std::filesystem::path folder_;
};

TEST_F(MappedFileTest, HoldsTheFilesBytes) {
  const std::string bytes("a\0b\xff", 4);
  const auto file = MappedFile::Open(Write("x", bytes));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->bytes(), bytes);
  EXPECT_EQ(file->path(), folder_ / "x");
}

TEST_F(MappedFileTest, AnEmptyFileIsEmpty) {
  const auto file = MappedFile::Open(Write("empty", ""));
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->bytes().empty());
}

TEST_F(MappedFileTest, MovesKeepTheMapping) {
  auto first = MappedFile::Open(Write("a", "first"));
  auto second = MappedFile::Open(Write("b", "second"));
  ASSERT_TRUE(first.ok() && second.ok());
  const char* data = first->bytes().data();
  MappedFile moved = std::move(*first);
  EXPECT_EQ(moved.bytes().data(), data);
  *second = std::move(moved);
  EXPECT_EQ(second->bytes(), "first");
  EXPECT_EQ(second->bytes().data(), data);
}

TEST_F(MappedFileTest, ErrorsNameThePath) {
  const std::string missing = folder_ / "missing";
  EXPECT_EQ(MappedFile::Open(missing).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(MappedFile::Open(missing).status().message()), HasSubstr(missing));

  EXPECT_EQ(MappedFile::Open(folder_).status().code(), absl::StatusCode::kInvalidArgument);

  const std::string below_file = Write("plain", "x") + "/child";
  EXPECT_EQ(MappedFile::Open(below_file).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MappedFileTest, APipeIsRefusedAndNotWaitedFor) {
  const std::string path = folder_ / "pipe";
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdn
