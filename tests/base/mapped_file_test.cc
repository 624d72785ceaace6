#include "base/files/mapped_file.h"

#include <sys/stat.h>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::mapped_file_test {
namespace {

using ::testing::HasSubstr;

class MappedFileTest : public ::testing::Test {
 protected:
  std::string Write(const std::string& name, const std::string& bytes) {
    const std::string path = Path(name);
    WriteFile(path, bytes);
    return path;
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TempFolder folder_;
};

TEST_F(MappedFileTest, HoldsTheFilesBytes) {
  const std::string bytes("a\0b\xff", 4);
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, MappedFile::Open(Write("x", bytes)));
  EXPECT_EQ(file.bytes(), bytes);
  EXPECT_EQ(file.path(), Path("x"));
}

TEST_F(MappedFileTest, AnEmptyFileIsEmpty) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, MappedFile::Open(Write("empty", "")));
  EXPECT_TRUE(file.bytes().empty());
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
  const std::string missing = Path("missing");
  EXPECT_EQ(MappedFile::Open(missing).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(MappedFile::Open(missing).status().message()), HasSubstr(missing));

  EXPECT_EQ(MappedFile::Open(folder_.path()).status().code(), absl::StatusCode::kInvalidArgument);

  const std::string below_file = Write("plain", "x") + "/child";
  EXPECT_EQ(MappedFile::Open(below_file).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(MappedFileTest, APipeIsRefusedAndNotWaitedFor) {
  const std::string path = Path("pipe");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(MappedFile::Open(path).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace gdn::mapped_file_test
