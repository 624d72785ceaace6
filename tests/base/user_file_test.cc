#include "base/files/user_file.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace gdn::user_file_test {
namespace {

using ::testing::HasSubstr;

class UserFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TempFolder folder_;
};

TEST_F(UserFileTest, ReadsAFileAndSaysWhyOneCannotBeRead) {
  WriteFile(Path("file"), std::string("a\0b\n", 4));
  EXPECT_EQ(*ReadUserFile(Path("file")), std::string("a\0b\n", 4));
  std::filesystem::create_symlink("nowhere", Path("broken"));
  for (const std::string name : {"none", "broken"}) {
    EXPECT_THAT(ReadUserFile(Path(name)).status().message(), HasSubstr(name + "': No such file"));
  }
  EXPECT_THAT(ReadUserFile(folder_.path()).status().message(), HasSubstr("it is a folder, expected a file"));
  EXPECT_THAT(ReadUserFile(Path("file"), 3).status().message(), HasSubstr("it has more than 3 bytes"));
}

TEST_F(UserFileTest, ReadsAPipeToItsEnd) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string bytes(300'000, 'x');  // more than a pipe holds
  std::thread writer([&] { std::ofstream(Path("pipe")) << bytes; });
  const absl::StatusOr<std::string> text = ReadUserFile(Path("pipe"));
  writer.join();
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(*text, bytes);
}

TEST_F(UserFileTest, NeitherAPipeWithoutAWriterNorAnEndlessDeviceIsReadForever) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  EXPECT_THAT(ReadUserFile(Path("pipe")).status().message(), HasSubstr("nothing has come through this pipe"));
  if (mknod(Path("zero").c_str(), S_IFCHR | 0666, makedev(1, 5)) != 0 || !std::ifstream(Path("zero")).good()) {
    GTEST_SKIP() << "no device can be made";
  }
  EXPECT_THAT(ReadUserFile(Path("zero")).status().message(), HasSubstr("it has more than "));
}

}  // namespace
}  // namespace gdn::user_file_test
