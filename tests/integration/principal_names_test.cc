// What callers are called in folders and stores: names made with a key, and what was stored under names without one.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "base/hash.h"
#include "state_store/tiers/disk_tier.h"
#include "tests/integration/service_helpers.h"
#include "tests/integration/token_feed.h"
#include "tests/support/host_memory_backend.h"

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr char kToken[] = "Bearer of good news";

std::string OldName(std::string_view token) {
  Hasher hasher;
  hasher.UpdateField(token);
  return hasher.Finish().ToHex();
}

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
  // What a server of before would have: every state of the folder under the token's name without a key.
  static void GiveOldNames(const TempFolder& folder) {
    const std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/1);
    HostBlockPool memory(*backend, 0);
    const auto disk = *DiskTier::Open({.directory = folder.path(), .max_draft = 8}, memory);
    const auto stored = disk->List();
    ASSERT_TRUE(stored.ok()) << stored.status();
    for (const StoredSession& session : *stored) {
      StateKey old = session.key;
      old.principal = OldName(kToken);
      const SessionImagePtr image = *disk->Load(session.key);
      std::const_pointer_cast<SessionImage>(image)->header.principal = old.principal;
      ASSERT_TRUE(disk->Store(old, image).ok());
      ASSERT_TRUE(disk->Erase(session.key, /*all=*/false).ok());
    }
    fs::remove_all(folder.path() + "/sessions/" + (*stored)[0].key.principal);
    fs::remove(folder.path() + "/principal-key");
  }

  const TokenFeed feed_ = TokenFeed::Operator(1);
};

TEST_F(PrincipalNames, AreMadeWithAKeyThatIsKeptBesideTheStates) {
  const TempFolder folder;
  const auto stored_name = [&](const TempFolder& where, GdnServerOptions options) {
    options.disk_dir = where.path();
    TestServer server(options);
    const Caller caller(server, kToken);
    EXPECT_TRUE(feed_.Create(caller, "a").ok());
    EXPECT_TRUE(caller.Checkpoint("a").ok());
    return NameIn(where);
  };
  const std::string name = stored_name(folder, {});
  EXPECT_NE(name, OldName(kToken)) << "a name that anybody can make";
  EXPECT_EQ(name.size(), 64u);
  struct stat key {};
  ASSERT_EQ(stat((folder.path() + "/principal-key").c_str(), &key), 0);
  EXPECT_EQ(key.st_mode & 0777, 0600u);
  EXPECT_EQ(stored_name(folder, {}), name) << "the same key after a restart";

  const TempFolder other, given_a, given_b;
  EXPECT_NE(stored_name(other, {}), name) << "another key";
  const std::string path = other.path() + "/given";
  std::ofstream(path) << "0123456789abcdef\n";
  EXPECT_EQ(stored_name(given_a, {.principal_key_file = path}), stored_name(given_b, {.principal_key_file = path}));
  EXPECT_FALSE(fs::exists(given_a.path() + "/principal-key"));
}

TEST_F(PrincipalNames, AKeyThatIsTooShortEndsTheStart) {
  const TempFolder folder;
  const std::string path = folder.path() + "/key";
  std::ofstream(path) << "short\n";
  for (const std::string& file : {path, folder.path() + "/none"}) {
    auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1),
                                   {.device_state_bytes = int64_t{1} << 24, .principal_key_file = file});
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
  const GdnServerOptions options{.disk_dir = folder.path() + "/states", .principals_file = list};
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
  auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1),
                                 {.device_state_bytes = int64_t{1} << 24, .principals_file = folder.path() + "/none"});
  EXPECT_TRUE(absl::IsInvalidArgument(server->Start()));
}

TEST_F(PrincipalNames, SessionsUnderOldNamesAreMovedOverAtTheirFirstUse) {
  const TempFolder folder;
  std::string named, newest;
  {
    TestServer server({.disk_dir = folder.path()});
    const Caller caller(server, kToken);
    for (const std::string id : {"a", "b", "c"}) feed_.Start(caller, id, {0, 7}, 3);
    ASSERT_TRUE(caller.Checkpoint("a", "kept").ok());
    named = caller.State("a");
    feed_.DecodeAll(caller, "a", {20, 2});
    newest = caller.State("a");
    ASSERT_TRUE(server.Drain());
  }
  GiveOldNames(folder);
  ASSERT_EQ(NameIn(folder), OldName(kToken));

  for (const bool restarted : {false, true}) {
    TestServer server({.disk_dir = folder.path()});
    const Caller caller(server, kToken), stranger(server, "Bearer of bad news"), nobody(server);
    EXPECT_TRUE(RefusedAs(stranger.Get("a"), "SESSION_NOT_FOUND"));
    EXPECT_TRUE(RefusedAs(nobody.Get("a"), "SESSION_NOT_FOUND"));
    EXPECT_EQ(caller.List(10).reply.sessions_size(), restarted ? 2 : 3);
    EXPECT_EQ(caller.State("a"), newest);
    if (restarted) {
      EXPECT_TRUE(RefusedAs(caller.Get("b"), "SESSION_NOT_FOUND")) << "deleted is deleted";
      EXPECT_TRUE(feed_.Create(caller, "c").ok()) << "by the same request";
      EXPECT_EQ(caller.TokenCount("c", 0), 10) << "never used, and still there";
    } else {
      EXPECT_TRUE(caller.Delete("b").ok());
      const auto gone = [&] {
        return FilesBelow(folder, "s-a/state.safetensors").size() == 1 &&
               FilesBelow(folder, "s-b/state.safetensors").empty();
      };
      ASSERT_TRUE(WaitUntil(gone, "the old files to go"));
      EXPECT_NE(FilesBelow(folder, "s-a/state.safetensors")[0].find(OldName(kToken)), 0u);
    }
    ASSERT_TRUE(caller.Restore("a", "kept").ok());
    EXPECT_EQ(caller.State("a"), named);
    feed_.DecodeAll(caller, "a", {20, 2});
    EXPECT_EQ(caller.State("a"), newest);
    ASSERT_TRUE(server.Drain());
  }
  EXPECT_TRUE(FilesBelow(folder, "-kept.safetensors").size() == 1);
}

}  // namespace
}  // namespace gdn
