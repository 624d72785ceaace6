// Callers are called in folders and stores by names that are made with a key.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::principal_names_test {
namespace {

namespace fs = std::filesystem;

constexpr char kToken[] = "Bearer of good news";

class PrincipalNames : public ::testing::Test {
 protected:
  // The only folder of a principal.
  static std::string NameIn(const TempFolder& folder) {
    std::string name;
    for (const auto& entry : fs::directory_iterator(folder.path() + "/sessions")) {
      EXPECT_EQ(name, "") << "one principal";
      name = entry.path().filename().string();
    }
    return name;
  }

  const TokenFeed feed_ = TokenFeed::Operator(1);
};

TEST_F(PrincipalNames, AreMadeWithAKeyThatIsKeptBesideTheStates) {
  const TempFolder folder;
  const auto stored_name = [&](const TempFolder& where, GdnServerOptions options) {
    options.states.disk.directory = where.path();
    TestServer server(options);
    const Caller caller(server, kToken);
    EXPECT_TRUE(feed_.Create(caller, "a").ok());
    EXPECT_TRUE(caller.Checkpoint("a").ok());
    return NameIn(where);
  };
  const std::string name = stored_name(folder, {});
  EXPECT_EQ(name.size(), 64u);
  struct stat key {};
  ASSERT_EQ(stat((folder.path() + "/principal-key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  EXPECT_EQ(stored_name(folder, {}), name) << "the same key after a restart";

  const TempFolder other, given_a, given_b;
  EXPECT_NE(stored_name(other, {}), name) << "another key";
  const std::string path = other.path() + "/given";
  std::ofstream(path) << "0123456789abcdef\n";
  EXPECT_EQ(stored_name(given_a, {.principals = {.key_file = path}}),
            stored_name(given_b, {.principals = {.key_file = path}}));
  EXPECT_FALSE(fs::exists(given_a.path() + "/principal-key"));
}

TEST_F(PrincipalNames, AKeyThatIsTooShortEndsTheStart) {
  const TempFolder folder;
  const std::string path = folder.path() + "/key";
  std::ofstream(path) << "short\n";
  for (const std::string& file : {path, folder.path() + "/none"}) {
    auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1), {.memory = {.device_state_bytes = int64_t{1} << 24},
                                                                    .principals = {.key_file = file}});
    const absl::Status started = server->Start();
    EXPECT_TRUE(absl::IsInvalidArgument(started)) << started;
    EXPECT_NE(started.message().find(AbslView(file)), absl::string_view::npos);
  }
}

// {"principals": [..]} of one principal, "team", with these two tokens: "Bearer 1" and "Bearer 2".
constexpr char kTeam[] =
    R"({"principals": [{"name": "team", "weight": 2, "sha256": [
      "16c2e9a3b8c0efc5d394421c9bdfac3ff12ce2c91b8f0208e0f75b013f22cb62",
      "cfcead19ff9b06ed6215a7c39808b52c03f27782522bc6070611c914f14a6604"]}]})";

TEST_F(PrincipalNames, TokensOfAListedPrincipalAreOne) {
  const TempFolder folder;
  const std::string list = folder.path() + "/principals.json";
  std::ofstream(list) << kTeam;
  const GdnServerOptions options{.states = {.disk = {.directory = folder.path() + "/states"}},
                                 .principals = {.file = list}};
  fs::create_directory(folder.path() + "/states");
  std::string state;
  {
    TestServer server(options);
    const Caller one(server, "Bearer 1"), two(server, "Bearer 2"), other(server, "Bearer 3");
    feed_.Start(one, "a", {0, 7}, 3);
    state = one.State("a");
    EXPECT_EQ(two.State("a"), state);
    EXPECT_TRUE(RefusedAs(other.Get("a"), "SESSION_NOT_FOUND"));
    // A call's account goes after its reply. Theirs stays; the address has no session and no call.
    EXPECT_TRUE(WaitUntil([&] { return server.server().ledger().accounts() == 1u; }, "calls' accounts to go"));
    server.Drain();
  }
  TestServer server(options);
  EXPECT_EQ(Caller(server, "Bearer 2").State("a"), state) << "and after a restart";
}

TEST_F(PrincipalNames, AListThatCannotBeReadEndsTheStart) {
  const TempFolder folder;
  auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1), {.memory = {.device_state_bytes = int64_t{1} << 24},
                                                                  .principals = {.file = folder.path() + "/none"}});
  EXPECT_TRUE(absl::IsInvalidArgument(server->Start()));
}

}  // namespace
}  // namespace gdn::principal_names_test
