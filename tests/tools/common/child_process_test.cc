#include "tools/common/child_process.h"

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's kill

#include <cerrno>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::child_process_test {
namespace {

using ::testing::HasSubstr;

class ChildProcessTest : public ::testing::Test {
 protected:
  absl::StatusOr<ChildProcess> StartShell(const std::string& script) {
    return ChildProcess::Start({"/bin/sh", "-c", script}, Path("log"));
  }
  // A shell that writes its pid and then lasts, having run `prelude` first.
  absl::StatusOr<ChildProcess> StartLastingShell(const std::string& prelude, pid_t* pid) {
    auto child = StartShell(prelude + " echo $$ > " + Path("pid") + "; while :; do sleep 0.05; done");
    if (child.ok()) {
      const auto written = [&] { return static_cast<bool>(std::ifstream(Path("pid")) >> *pid); };
      EXPECT_EQ(child->WaitUntil(written, absl::Seconds(30)), absl::OkStatus());
    }
    return child;
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }

  const TempFolder folder_;
};

TEST_F(ChildProcessTest, IsGoneOnceItsOwnerIs) {
  for (const std::string prelude : {"", "trap '' TERM;"}) {
    std::remove(Path("pid").c_str());
    pid_t pid = 0;
    {
      GDN_ASSERT_OK_AND_ASSIGN(const auto child, StartLastingShell(prelude, &pid));
      EXPECT_EQ(kill(pid, 0), 0);
    }
    EXPECT_EQ(kill(pid, 0), -1) << "with prelude '" << prelude << "'";
    EXPECT_EQ(errno, ESRCH);
  }
}

TEST_F(ChildProcessTest, IsGoneOnceItHasBeenEnded) {
  for (const int signal : {SIGTERM, SIGKILL}) {
    std::remove(Path("pid").c_str());
    pid_t pid = 0;
    GDN_ASSERT_OK_AND_ASSIGN(auto child, StartLastingShell("", &pid));
    child.End(signal);
    EXPECT_EQ(kill(pid, 0), -1);
    EXPECT_EQ(child.Wait(), 128 + signal);
    child.Signal(SIGKILL);  // to nobody
  }
}

TEST_F(ChildProcessTest, GivesItsExitCode) {
  GDN_ASSERT_OK_AND_ASSIGN(auto child, StartShell("exit 7"));
  EXPECT_EQ(child.Wait(), 7);
}

TEST_F(ChildProcessTest, TellsThePortThatItWrites) {
  auto child =
      StartShell("printf 50 > " + Path("port") + "; sleep 0.02; printf '061\\n' >> " + Path("port") + "; sleep 60");
  ASSERT_TRUE(child.ok()) << child.status();
  GDN_ASSERT_OK_AND_ASSIGN(const auto port, child->WaitForPort(Path("port"), absl::Seconds(30)));
  EXPECT_EQ(port, 50061) << "half a number was taken for the port";
}

TEST_F(ChildProcessTest, ThatExitsBeforeItListensIsReportedWithItsOutput) {
  auto child = StartShell("echo no such model; exit 3");
  ASSERT_TRUE(child.ok()) << child.status();
  const auto port = child->WaitForPort(Path("port"), absl::Seconds(30));
  EXPECT_EQ(port.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(port.status().message()), HasSubstr("no such model"));
}

TEST_F(ChildProcessTest, ThatDoesNotListenInTimeIsReported) {
  GDN_ASSERT_OK_AND_ASSIGN(auto child, StartShell("sleep 60"));
  const auto port = child.WaitForPort(Path("port"), absl::Milliseconds(20));
  EXPECT_THAT(port.status().ToString(), HasSubstr("did not listen within 20ms"));
}

TEST_F(ChildProcessTest, IsLookedForInThePath) {
  GDN_ASSERT_OK_AND_ASSIGN(auto child, ChildProcess::Start({"true"}, Path("log")));
  EXPECT_EQ(child.Wait(), 0);
}

TEST_F(ChildProcessTest, ThatCannotBeExecutedIsNotFound) {
  const absl::Status status = ChildProcess::Start({"/no/such/program"}, "/dev/null").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "cannot execute '/no/such/program': No such file or directory");
}

}  // namespace
}  // namespace gdn::child_process_test
