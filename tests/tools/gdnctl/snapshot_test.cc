// gdnctl snapshots list and delete.
#include <string>
#include <vector>

#include "absl/flags/reflection.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::snapshot_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(SnapshotCommands, ListsAndDeletesSnapshotsAndTellsOfLostOnes) {
  FakeGdnService service;
  const LoopbackServer server(&service);
  const auto run = [&server](std::vector<std::string> arguments) {
    const absl::FlagSaver saver;
    arguments.push_back("--target=" + server.target());
    return RunCommand(arguments.front() == "info" ? InfoCommands() : SnapshotCommands(), arguments);
  };
  const auto client = Client::Connect(server.target());
  v1::CreateSessionRequest create;
  create.set_session_id("a");
  create.set_model(kToyModel);
  ASSERT_TRUE(client->CreateSession(create).ok());
  service.MoveLayer("sessions/a", 0, 7);
  for (const char* const key : {"k1", "k2"}) {
    v1::SnapshotSessionRequest take;
    take.set_session("sessions/a");
    take.set_key(key);
    ASSERT_TRUE(client->SnapshotSession(take).ok());
  }
  service.EvictSnapshot("k1");

  const Outcome listed = run({"snapshots"});
  EXPECT_EQ(listed.exit_code, kExitOk) << listed.err;
  EXPECT_THAT(listed.out, HasSubstr("k2"));
  EXPECT_THAT(listed.out, HasSubstr(" 7 "));
  EXPECT_THAT(listed.out, HasSubstr("lost: k1 was evicted"));
  EXPECT_THAT(run({"info"}).out, HasSubstr("snapshots    1, "));
  EXPECT_THAT(run({"info"}).out, HasSubstr("; 1 evicted, 0 damaged"));
  const Outcome deleted = run({"snapshots", "delete", "k2"});
  EXPECT_EQ(deleted.exit_code, kExitOk) << deleted.err;
  EXPECT_THAT(deleted.out, HasSubstr("deleted snapshot k2"));
  EXPECT_THAT(run({"snapshots", "list"}).out, Not(HasSubstr("k2")));
  const Outcome again = run({"snapshots", "delete", "k2"});
  EXPECT_NE(again.exit_code, kExitOk);
  EXPECT_THAT(again.err, HasSubstr("SNAPSHOT_NOT_FOUND"));
}

}  // namespace
}  // namespace gdn::snapshot_test
