// A server starts on the stores that servers of released versions left: a disk's folder, a Redis, or both. Sessions of
// a server that had stopped in order go on at their last step; those of one that was killed, where they were last
// durable, in a new epoch; and those that had ended stay so.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "tests/compatibility/fixtures.h"
#include "tests/integration/support/token_logins.h"
#include "tests/state_store/tiers/redis_server_fixture.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_backend.h"

namespace gdn::stores_test {
namespace {

using nlohmann::json;

struct Tested {
  std::string version;
  std::string store;
  std::string backend;
};

std::string NameOf(const Tested& tested) {
  return TestNameOf(tested.version) + "_" + tested.store + "_on_" + tested.backend;
}
void PrintTo(const Tested& tested, std::ostream* out) { *out << NameOf(tested); }

std::vector<Tested> AllOfThem() {
  std::vector<Tested> all;
  for (const std::string& version : FixtureVersions()) {
    const json manifest = JsonOf(FixturePath(version, "manifest.json"));
    for (const json& store : manifest["stores"]) {
      for (const std::string& backend : FixtureBackends()) all.push_back({version, store["name"], backend});
    }
  }
  return all;
}

class Stores : public ::testing::TestWithParam<Tested> {
 protected:
  void SetUp() override {
    for (const json& store : manifest_["stores"]) {
      if (store["name"] == GetParam().store) store_ = store;
    }
    if (store_["redis"] && !RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
    if (!MakeBackend(GetParam().backend).ok()) GTEST_SKIP() << "there is no " << GetParam().backend;
  }

  static std::string Word(const json& word) {
    return word.is_string() ? word.get<std::string>() : FromBase64(word["base64"]);
  }
  static void Fill(const RedisServer& redis, const std::string& dump) {
    for (const json& command : JsonOf(dump)) {
      std::vector<std::string> words;
      for (const json& word : command) words.push_back(Word(word));
      const std::string reply = redis.Command(words);
      ASSERT_TRUE(reply == "OK" || reply.find_first_not_of("0123456789") == std::string::npos) << reply;
    }
  }

  // Waits until the server has erased from Redis the session that a note in the disk's folder names. The server does so
  // beside other work on the stores, so each try makes some.
  static void ExpectErased(const Caller& caller, const RedisServer& redis, const std::string& id) {
    const auto erased = [&] {
      EXPECT_TRUE(caller.CreateOperator("other", SmallOperator()).ok() && caller.Evict("other").ok());
      EXPECT_TRUE(caller.Delete("other").ok());
      return redis.Command({"KEYS", "*/" + id + "}*"}).empty();
    };
    WaitUntil(erased, "the server to erase from Redis what has ended");
  }

  const json manifest_ = JsonOf(FixturePath(GetParam().version, "manifest.json"));
  json store_;
};

TEST_P(Stores, AreTakenOverByTheRulesOfEpochs) {
  const TempFolder folder;
  const std::string kept = FixturePath(GetParam().version, "stores/" + GetParam().store);
  GdnServerOptions options;
  for (const auto& [name, set] : store_["models"].items()) options.models.emplace_back(name, GoldenPath(set));
  if (store_["disk"]) {
    options.states.disk.directory = folder.path() + "/disk";
    std::filesystem::copy(kept + "/disk", options.states.disk.directory, std::filesystem::copy_options::recursive);
  }
  std::optional<RedisServer> redis;
  if (store_["redis"]) {
    redis.emplace();
    redis->Start();
    ASSERT_NO_FATAL_FAILURE(Fill(*redis, kept + "/redis.json"));
    options.states.redis = {.endpoint = redis->endpoint(), .share_sessions = store_["share_sessions"]};
    options.fleet.notice = absl::ZeroDuration();
  }
  if (store_["logins"]) {
    options.security.tokens_file = folder.path() + "/tokens.json";
    WriteFile(options.security.tokens_file, R"({"subjects": [)" + TokenEntry("alice", "alice-token") + "]}");
  }
  TestServer server(std::move(options), MakeBackend(GetParam().backend).value());
  for (const json& session : store_["sessions"]) {
    const std::string token = session.value("token", "");
    ExpectSession(Caller(server, token.empty() ? "" : "Bearer " + token), session,
                  {.numerics_id = manifest_["numerics_id"]});
    if (session.value("gone", false) && redis.has_value()) ExpectErased(Caller(server), *redis, session["name"]);
  }
}

INSTANTIATE_TEST_SUITE_P(Of, Stores, ::testing::ValuesIn(AllOfThem()),
                         [](const auto& tested) { return NameOf(tested.param); });

}  // namespace
}  // namespace gdn::stores_test
