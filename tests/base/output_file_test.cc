#include "base/files/output_file.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::output_file_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

int EntriesOf(const std::string& folder) {
  return static_cast<int>(std::distance(fs::directory_iterator(folder), fs::directory_iterator()));
}

// Only in a private folder: a failing test destroys the device.
bool MakeDevice(const std::string& path, unsigned int minor) {
  return mknod(path.c_str(), S_IFCHR | 0666, makedev(1, minor)) == 0 && access(path.c_str(), W_OK) == 0;
}

class OutputFileTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TempFolder folder_;
};

TEST_F(OutputFileTest, AppearsOnlyWhenCommittedAndKeepsTheModeOfWhatItReplaces) {
  WriteFile(Path("file"), "old");
  ASSERT_EQ(chmod(Path("file").c_str(), 0640), 0);
  {
    GDN_ASSERT_OK_AND_ASSIGN(OutputFile file, OutputFile::Create(Path("file")));
    ASSERT_TRUE(file.Append("half").ok());
    EXPECT_EQ(ReadFile(Path("file")), "old");
  }
  EXPECT_EQ(ReadFile(Path("file")), "old");
  EXPECT_EQ(EntriesOf(folder_.path()), 1);
  ASSERT_TRUE(WriteOutputFile(Path("file"), "whole").ok());
  EXPECT_EQ(ReadFile(Path("file")), "whole");
  struct stat found {};
  ASSERT_EQ(stat(Path("file").c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 07777, 0640u);
  EXPECT_EQ(EntriesOf(folder_.path()), 1);
}

TEST_F(OutputFileTest, ReservesBytesAndLeavesNoneBehind) {
  GDN_ASSERT_OK_AND_ASSIGN(OutputFile file, OutputFile::Create(Path("file")));
  ASSERT_TRUE(file.Reserve(1 << 20).ok());
  ASSERT_TRUE(file.Append("few").ok());
  ASSERT_TRUE(file.Commit().ok());
  EXPECT_EQ(ReadFile(Path("file")), "few");
}

TEST_F(OutputFileTest, SymbolicLinksStayAndTheirTargetIsReplaced) {
  fs::create_directory(Path("elsewhere"));
  WriteFile(Path("elsewhere/file"), "old");
  fs::create_symlink("elsewhere/file", Path("link"));
  fs::create_symlink("link", Path("link to a link"));
  ASSERT_TRUE(WriteOutputFile(Path("link to a link"), "new").ok());
  EXPECT_TRUE(fs::is_symlink(Path("link")));
  EXPECT_TRUE(fs::is_symlink(Path("link to a link")));
  EXPECT_EQ(ReadFile(Path("elsewhere/file")), "new");
}

TEST_F(OutputFileTest, SaysWhyAPathCannotBeWritten) {
  fs::create_symlink("nowhere", Path("broken"));
  WriteFile(Path("file"), "");
  const auto message = [](const std::string& path) { return std::string(OutputFile::Create(path).status().message()); };
  EXPECT_THAT(message(Path("broken")), HasSubstr("is a symbolic link to 'nowhere', which is not there"));
  EXPECT_THAT(message(folder_.path()), HasSubstr("it is a folder; name a file in it"));
  EXPECT_THAT(message(Path("new/")), HasSubstr("it is a folder; name a file in it"));
  EXPECT_THAT(message(Path("file/part")), HasSubstr("a part of it is not a folder"));
  EXPECT_THAT(message(Path("none/file")), HasSubstr("No such file or directory"));
  EXPECT_EQ(OutputFile::Create(Path("none/file")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(fs::is_symlink(Path("broken")));
}

TEST_F(OutputFileTest, DevicesAreWrittenThrough) {
  if (!MakeDevice(Path("null"), 3) || !MakeDevice(Path("full"), 7)) GTEST_SKIP() << "no device can be made";
  fs::create_symlink("null", Path("link"));
  EXPECT_TRUE(WriteOutputFile(Path("null"), "gone").ok());
  EXPECT_TRUE(WriteOutputFile(Path("link"), "gone").ok());
  EXPECT_THAT(WriteOutputFile(Path("full"), "gone").message(), HasSubstr("No space left"));
  EXPECT_TRUE(fs::is_character_file(Path("null")));
  EXPECT_TRUE(fs::is_character_file(Path("full")));
  EXPECT_TRUE(fs::is_symlink(Path("link")));
}

TEST_F(OutputFileTest, PipesAreWrittenThrough) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string bytes(1 << 20, 'x');  // more than a pipe holds
  std::string got;
  std::thread reader([&] { got = ReadFile(Path("pipe")); });
  EXPECT_TRUE(WriteOutputFile(Path("pipe"), bytes).ok());
  reader.join();
  EXPECT_EQ(got, bytes);
  EXPECT_TRUE(fs::is_fifo(Path("pipe")));
}

TEST_F(OutputFileTest, AReaderThatHasGoneIsAnErrorAndNotTheEndOfTheProcess) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  int reader = open(Path("pipe").c_str(), O_RDONLY | O_NONBLOCK);
  GDN_ASSERT_OK_AND_ASSIGN(OutputFile file, OutputFile::Create(Path("pipe")));
  close(reader);
  EXPECT_THAT(file.Append("bytes").message(), HasSubstr("Broken pipe"));
  sigset_t pending;
  ASSERT_EQ(sigpending(&pending), 0);
  EXPECT_EQ(sigismember(&pending, SIGPIPE), 0);
}

TEST_F(OutputFileTest, APipeThatNobodyReadsIsNotWaitedForForever) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const absl::Status status = OutputFile::Create(Path("pipe")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(status.message(), HasSubstr("nobody has opened this pipe for reading"));
}

TEST_F(OutputFileTest, ALimitOnFileSizesIsAnErrorBeforeAnythingIsLost) {
  WriteFile(Path("file"), "old");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit few{.rlim_cur = 4, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &few), 0);
  auto file = OutputFile::Create(Path("file"));
  const absl::Status reserved = file->Reserve(5);
  const absl::Status appended = file->Append("more than four");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  EXPECT_THAT(reserved.message(), HasSubstr("File too large"));
  EXPECT_THAT(appended.message(), HasSubstr("File too large"));
  EXPECT_EQ(ReadFile(Path("file")), "old");
}

}  // namespace
}  // namespace gdn::output_file_test
