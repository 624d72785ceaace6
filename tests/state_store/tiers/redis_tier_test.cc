#include "state_store/tiers/redis/redis_tier.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <thread>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/redis_tier_fixture.h"
#include "tests/support/temp_folder.h"

namespace gdn::redis_tier_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const StateKey kKey{.principal = "ab12", .id = "chat-1", .checkpoint = ""};
const StateKey kNamed{.principal = "ab12", .id = "chat-1", .checkpoint = "before~lunch"};
constexpr int kClaimKeys = 2;  // owner, incarnation
const StateKey kOther{.principal = "", .id = "op", .checkpoint = ""};

class RedisTierTest : public RedisTierFixture {
 protected:
  void Store(RedisTier& tier, const StateKey& key, const TestSession& session) {
    const absl::StatusOr<StoreResult> stored = tier.Store(key, MakeImage(session, memory_.host));
    ASSERT_TRUE(stored.ok()) << stored.status();
    EXPECT_GT(stored->written_bytes, 0);
  }
};

TEST_F(RedisTierTest, GivesBackWhatWasStoredBitForBit) {
  for (const bool tcp : {false, true}) {
    RedisServer server({.tcp = tcp});
    server.Start();
    const auto tier = Connect(server);
    ASSERT_TRUE(tier->NextIncarnation().ok());
    EXPECT_TRUE(tier->durable());
    EXPECT_EQ(tier->endpoint(), server.endpoint());
    Store(*tier, kKey, MakeModelSession(1));
    Store(*tier, kNamed, MakeModelSession(2));
    Store(*tier, kOther, MakeOperatorSession(3));
    ExpectLoads(*tier, kKey, MakeModelSession(1));
    ExpectLoads(*tier, kNamed, MakeModelSession(2));
    ExpectLoads(*tier, kOther, MakeOperatorSession(3));

    // Another server finds them, in the layout of its own.
    const auto another = Connect(server, {.max_draft = 3});
    ExpectLoads(*another, kKey, MakeModelSession(1));
  }
}

TEST_F(RedisTierTest, ReplacesAStateAndLeavesNoOldChunks) {
  Start();
  for (uint64_t seed = 1; seed < 6; ++seed) Store(*tier_, kKey, MakeModelSession(seed));
  const int64_t chunks = (tier_->usage().used_bytes + 1023) / 1024;
  EXPECT_GT(chunks, 5);
  EXPECT_EQ(server_->Command({"DBSIZE"}), std::to_string(chunks + 1 + kClaimKeys));
  ExpectLoads(*tier_, kKey, MakeModelSession(5));
  const std::string names = server_->Command({"KEYS", "*"});
  EXPECT_THAT(names, HasSubstr("gdn:{ab12/chat-1}\n"));
  // Nothing that the manifest names may expire.
  EXPECT_THAT(server_->Command({"EVAL",
                                "local n = 0; for _, k in ipairs(redis.call('KEYS', '*')) do"
                                " if redis.call('TTL', k) ~= -1 then n = n + 1 end end; return n",
                                "0"}),
              "0");
}

TEST_F(RedisTierTest, ErasesAStateOrAllOfASession) {
  Start();
  Store(*tier_, kKey, MakeModelSession(1));
  Store(*tier_, kNamed, MakeModelSession(2));
  Store(*tier_, kOther, MakeOperatorSession(3));
  EXPECT_EQ(tier_->usage().sessions, 2) << "a checkpoint is no session";
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/false).ok());
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/false).ok());
  EXPECT_TRUE(absl::IsNotFound(tier_->Load(kKey).status()));
  EXPECT_EQ(ErrorReason(tier_->Load(kKey).status()), reason::kSessionNotFound);
  ExpectLoads(*tier_, kNamed, MakeModelSession(2));
  Store(*tier_, kKey, MakeModelSession(1));
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
  EXPECT_EQ(ErrorReason(tier_->Load(kNamed).status()), reason::kCheckpointNotFound);
  ExpectLoads(*tier_, kOther, MakeOperatorSession(3));
  EXPECT_TRUE(tier_->Erase(kOther, /*all=*/true).ok());
  EXPECT_EQ(server_->Command({"DBSIZE"}), std::to_string(kClaimKeys));
  EXPECT_EQ(tier_->usage().sessions, 0);
  EXPECT_EQ(tier_->usage().used_bytes, 0);
}

TEST_F(RedisTierTest, DescribesAStateWithoutReadingIt) {
  Start();
  Store(*tier_, kKey, MakeModelSession(1));
  const int64_t bytes = tier_->usage().used_bytes;
  Store(*tier_, kNamed, MakeModelSession(2));
  const auto another = Connect(*server_);
  ASSERT_TRUE(another->NextIncarnation().ok());
  const absl::StatusOr<StoredSession> found = another->Describe(kNamed);
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_EQ(found->key, kNamed);
  EXPECT_EQ(found->bytes, tier_->usage().used_bytes - bytes);
  EXPECT_EQ(found->layers.size(), MakeModelSession(2).layers.size());
  EXPECT_EQ(another->usage().used_bytes, found->bytes);
  EXPECT_EQ(another->usage().loads, 0);
  EXPECT_EQ(ErrorReason(another->Describe({.principal = "", .id = "x", .checkpoint = "y"}).status()),
            reason::kCheckpointNotFound);
}

TEST_F(RedisTierTest, ListsWhatIsThereAfterARestart) {
  Start({.append_only = true});
  Store(*tier_, kKey, MakeModelSession(1));
  const int64_t bytes = tier_->usage().used_bytes;
  Store(*tier_, kNamed, MakeModelSession(2));
  Store(*tier_, kOther, MakeOperatorSession(3));
  server_->Kill();
  server_->Start();
  server_->Command({"SET", "gdn:{not/ours}", "x"});
  server_->Command({"HSET", "gdn:{ab12/other}", "state", "{\"version\": 1}"});
  const auto tier = Connect(*server_);
  absl::StatusOr<std::vector<StoredSession>> listed = tier->List();
  ASSERT_TRUE(listed.ok()) << listed.status();
  std::sort(listed->begin(), listed->end(), [](const auto& a, const auto& b) { return a.key < b.key; });
  ASSERT_EQ(listed->size(), 3u);
  EXPECT_EQ((*listed)[0].key, kOther);
  EXPECT_EQ((*listed)[1].key, kKey);
  EXPECT_EQ((*listed)[2].key, kNamed);
  const StoredSession& session = (*listed)[1];
  const TestSession expected = MakeModelSession(1);
  EXPECT_EQ(session.bytes, bytes);
  EXPECT_EQ(session.header.epoch, expected.header.epoch);
  EXPECT_EQ(session.header.affinity, expected.header.affinity);
  EXPECT_EQ(session.header.layers, expected.header.layers);
  ASSERT_EQ(session.layers.size(), expected.layers.size());
  ASSERT_EQ(session.kinds.size(), expected.layers.size());
  for (size_t i = 0; i < expected.layers.size(); ++i) {
    EXPECT_EQ(session.layers[i].first, expected.layers[i].layer);
    EXPECT_EQ(session.layers[i].second, expected.layers[i].extent);
    EXPECT_EQ(session.kinds[i], expected.layers[i].kind);
  }
  EXPECT_EQ(tier->usage().failures, 1);  // the manifest that is none
  EXPECT_EQ(tier->usage().sessions, 2);
  ExpectLoads(*tier, kKey, expected);
}

TEST_F(RedisTierTest, TiersOfDifferentPrefixesDoNotSeeEachOther) {
  Start();
  const auto a = Connect(*server_, {.prefix = "a:"});
  const auto b = Connect(*server_, {.prefix = "a:b:"});
  ASSERT_TRUE(a->NextIncarnation().ok() && b->NextIncarnation().ok());
  Store(*a, kKey, MakeModelSession(1));
  EXPECT_TRUE(absl::IsNotFound(b->Load(kKey).status()));
  EXPECT_TRUE(b->List()->empty());
  Store(*b, kKey, MakeModelSession(2));
  EXPECT_EQ(a->List()->size(), 1u);
  EXPECT_TRUE(b->Erase(kKey, /*all=*/true).ok());
  ExpectLoads(*a, kKey, MakeModelSession(1));
}

TEST_F(RedisTierTest, SaysWhichStateMissesAChunk) {
  Start();
  Store(*tier_, kKey, MakeModelSession(1));
  const std::string manifest = server_->Command({"HGET", "gdn:{ab12/chat-1}", "state"});
  const size_t begin = manifest.find("\"version\":\"") + 11;
  const std::string chunk = "gdn:{ab12/chat-1}:" + manifest.substr(begin, 32) + ":2";
  const std::string bytes = server_->Command({"GET", chunk});
  ASSERT_EQ(bytes.size(), 1024u);

  std::string flipped = bytes;
  flipped[100] ^= 1;
  for (const std::string& damaged : {flipped, bytes.substr(1), std::string()}) {
    ASSERT_EQ(server_->Command({"DEL", chunk}), "1");
    if (!damaged.empty()) server_->Command({"SET", chunk, damaged});
    const absl::Status status = tier_->Load(kKey).status();
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile);
    EXPECT_THAT(status.message(), HasSubstr("chat-1"));
  }
  EXPECT_EQ(tier_->usage().failures, 3);
  server_->Command({"SET", chunk, bytes});
  ExpectLoads(*tier_, kKey, MakeModelSession(1));
}

TEST_F(RedisTierTest, RefusesAFileThatIsAnotherSessions) {
  Start();
  Store(*tier_, kKey, MakeModelSession(1));
  Store(*tier_, kOther, MakeOperatorSession(3));
  // The other's file under this one's names: whole, and not this one's.
  const std::string from = "gdn:{/op}", to = "gdn:{ab12/chat-1}";
  const std::string manifest = server_->Command({"HGET", from, "state"});
  server_->Command({"HSET", to, "state", manifest});
  const std::string version = manifest.substr(manifest.find("\"version\":\"") + 11, 32);
  const int64_t copied = std::stoll(server_->Command(
      {"EVAL", "local n = 0; while redis.call('COPY', KEYS[1] .. n, KEYS[2] .. n) == 1 do n = n + 1 end; return n", "2",
       from + ":" + version + ":", to + ":" + version + ":"}));
  ASSERT_GT(copied, 0);
  const absl::Status status = tier_->Load(kKey).status();
  ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile);
  EXPECT_THAT(status.message(), HasSubstr("another session's"));
  ExpectLoads(*tier_, kOther, MakeOperatorSession(3));
}

TEST_F(RedisTierTest, SaysThatThePasswordIsWrongWithoutRepeatingIt) {
  RedisServer server({.tcp = true, .arguments = {"--requirepass", "se@cret"}});
  server.Start();
  const TempFolder folder;
  const std::string file = folder.path() + "/password";
  const auto connect = [&](std::string endpoint, const std::string& password) {
    std::ofstream(file) << password << "\n";
    return *RedisTier::Make({.endpoint = std::move(endpoint), .password_file = file}, memory_.host);
  };
  const auto none = *RedisTier::Make({.endpoint = server.endpoint()}, memory_.host);
  const absl::Status wanted = none->Load(kKey).status();
  ExpectError(wanted, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(ErrorMetadata(wanted)["tier"], "redis");
  EXPECT_THAT(wanted.message(), HasSubstr("wants a password"));
  EXPECT_EQ(none->usage().failures, 1);

  const absl::Status refused = connect(server.endpoint(), "wr0ng")->Load(kKey).status();
  EXPECT_TRUE(absl::IsUnavailable(refused));
  EXPECT_THAT(refused.message(), HasSubstr("refused the password"));
  EXPECT_THAT(refused.message(), Not(HasSubstr("wr0ng")));

  EXPECT_TRUE(absl::IsNotFound(connect(server.endpoint(), "se@cret")->Load(kKey).status()));
  const auto tier = connect("redis://default@" + server.endpoint() + "/3", "se@cret");
  ASSERT_TRUE(tier->NextIncarnation().ok());
  Store(*tier, kOther, MakeOperatorSession(1));
  EXPECT_TRUE(absl::IsNotFound(connect("redis://" + server.endpoint(), "se@cret")->Load(kOther).status()));

  // A new password is taken up with the next connection.
  server.CommandAs("se@cret", {"CONFIG", "SET", "requirepass", "an0ther"});
  server.CommandAs("an0ther", {"CLIENT", "KILL", "TYPE", "normal"});
  EXPECT_THAT(tier->Load(kOther).status().message(), HasSubstr("refused the password"));
  std::ofstream(file) << "an0ther\n";
  ExpectLoads(*tier, kOther, MakeOperatorSession(1));
}

TEST_F(RedisTierTest, SaysThatThePasswordsFileIsOfNoUse) {
  const TempFolder folder;
  const std::string file = folder.path() + "/password";
  const auto make = [&] { return RedisTier::Make({.endpoint = "h", .password_file = file}, memory_.host).status(); };
  EXPECT_THAT(make().message(), HasSubstr("--redis-password-file: cannot read"));
  std::ofstream(file) << "\n";
  EXPECT_THAT(make().message(), HasSubstr("has no password in it"));
}

TEST_F(RedisTierTest, SaysThatNobodyAnswers) {
  RedisServer server;
  const auto tier = Connect(server);
  const absl::Status status = tier->Store(kOther, MakeImage(MakeOperatorSession(1), memory_.host)).status();
  ExpectError(status, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_THAT(status.message(), HasSubstr(server.endpoint()));
  EXPECT_TRUE(absl::IsUnavailable(tier->List().status()));
  EXPECT_TRUE(absl::IsUnavailable(tier->Erase(kOther, /*all=*/false)));
  EXPECT_TRUE(absl::IsUnavailable(tier->Erase(kOther, /*all=*/true)));
  EXPECT_EQ(tier->usage().failures, 4);
  server.Start();
  EXPECT_TRUE(absl::IsUnavailable(tier->Erase(kOther, /*all=*/true))) << "the prefix is not taken yet";
  ASSERT_TRUE(tier->NextIncarnation().ok());
  Store(*tier, kOther, MakeOperatorSession(1));
  server.Kill();
  server.Start();  // without its data, and without the connection
  EXPECT_TRUE(absl::IsNotFound(tier->Load(kOther).status()));
}

TEST_F(RedisTierTest, KeepsTheFirstSecretForWhoeverComesLater) {
  Start();
  EXPECT_EQ(*tier_->KeepSecret("first"), "first");
  EXPECT_EQ(*Connect(*server_)->KeepSecret("second"), "first");
  EXPECT_EQ(*Connect(*server_, {.prefix = "other:"})->KeepSecret("third"), "third");
  EXPECT_TRUE(tier_->List()->empty()) << "it is no session";
}

TEST_F(RedisTierTest, OnlyTheLastThatTookThePrefixWrites) {
  Start();
  Store(*tier_, kKey, MakeModelSession(1));
  const auto later = Connect(*server_);
  ASSERT_EQ(*later->NextIncarnation(), 2);
  ExpectLoads(*later, kKey, MakeModelSession(1));
  const auto taken_over = [](const absl::Status& status) {
    ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStatesTakenOver);
    EXPECT_FALSE(ErrorMetadata(status).contains("owner"));
  };
  taken_over(tier_->Store(kKey, MakeImage(MakeModelSession(2), memory_.host)).status());
  taken_over(tier_->Erase(kKey, /*all=*/true));
  taken_over(tier_->Load(kKey).status());
  taken_over(tier_->CheckClaim());
  ExpectLoads(*later, kKey, MakeModelSession(1));
  EXPECT_TRUE(later->CheckClaim().ok());
  // For good, though the later one goes and the store with it.
  server_->Command({"FLUSHALL"});
  taken_over(tier_->CheckClaim());
  taken_over(tier_->NextIncarnation().status());
}

TEST_F(RedisTierTest, AStoreThatWentBackIsTakenAgainByTheServerThatCameLast) {
  Start();
  const auto later = Connect(*server_);
  const std::string owner = server_->Command({"HGET", "gdn:owner", "server"});
  ASSERT_TRUE(later->NextIncarnation().ok());
  // Sets the store back: its owner is the server that the later one took it from, and its number is lower.
  server_->Command({"HSET", "gdn:owner", "server", owner, "before", "", "incarnation", "1"});
  server_->Command({"SET", "gdn:incarnation", "1"});
  EXPECT_TRUE(tier_->CheckClaim().ok()) << "it looks as if the prefix were still its own";
  Store(*later, kKey, MakeModelSession(1));
  EXPECT_EQ(server_->Command({"GET", "gdn:incarnation"}), "2");
  EXPECT_EQ(ErrorReason(tier_->CheckClaim()), reason::kStatesTakenOver);
  server_->Command({"FLUSHALL"});
  Store(*later, kKey, MakeModelSession(2));
  ExpectLoads(*later, kKey, MakeModelSession(2));
}

TEST_F(RedisTierTest, KeepsTheOldStateWhereTheServersMemoryIsFull) {
  Start({.arguments = {"--maxmemory", "20mb", "--maxmemory-policy", "noeviction"}});
  Store(*tier_, kKey, MakeModelSession(1));
  TestSession large = MakeModelSession(2);
  auto reply = std::make_shared<StoredReply>(*large.layers[1].reply);
  reply->output.assign(size_t{30} << 20, 'x');
  large.layers[1].reply = reply;
  const absl::Status status = tier_->Store(kKey, MakeImage(large, memory_.host)).status();
  ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_EQ(tier_->usage().failures, 0) << "what does not fit is an answer, as in every tier";
  ExpectLoads(*tier_, kKey, MakeModelSession(1));
  // Chunks of the refused state do not stay.
  Store(*tier_, kKey, MakeModelSession(3));
  ExpectLoads(*tier_, kKey, MakeModelSession(3));
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
  EXPECT_EQ(server_->Command({"DBSIZE"}), std::to_string(kClaimKeys));
}

TEST_F(RedisTierTest, AReaderFindsTheOldOrTheNewStateWhileOneIsStored) {
  Start();
  const auto reader = Connect(*server_);
  Store(*tier_, kKey, MakeModelSession(0));
  std::atomic<bool> done = false;
  std::thread thread([&] {
    for (uint64_t seed = 1; seed <= 100; ++seed) Store(*tier_, kKey, MakeModelSession(seed % 2));
    done = true;
  });
  const TestSession states[] = {MakeModelSession(0), MakeModelSession(1)};
  int loads = 0;
  while (!done || loads == 0) {
    const absl::StatusOr<SessionImagePtr> image = reader->Load(kKey);
    // Two Stores within one Load leave it nothing whole to read; it says so.
    if (!image.ok()) {
      EXPECT_TRUE(absl::IsDataLoss(image.status())) << image.status();
      continue;
    }
    ++loads;
    const TestSession loaded = TakeApart(**image);
    EXPECT_TRUE(SameStates(loaded, states[0]) || SameStates(loaded, states[1]));
  }
  thread.join();
  ExpectLoads(*reader, kKey, states[0]);
}

TEST_F(RedisTierTest, RefusesOptionsThatCannotBe) {
  for (const char* endpoint : {"", ":6379", "host:0", "host:70000", "host:x", "unix:relative", "http://host", "u@host",
                               "redis://host/x", "redis://%zz@host", "redis://@host", "redis://:secret@host",
                               "redis://u:secret@host", "rediss://host", "[::1"}) {
    const absl::Status status = RedisTier::Make({.endpoint = endpoint}, memory_.host).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << endpoint;
    EXPECT_THAT(status.message(), Not(HasSubstr("secret")));
  }
  EXPECT_THAT(ParseRedisEndpoint("redis://u:secret@host").status().message(), HasSubstr("--redis-password-file"));
  EXPECT_THAT(ParseRedisEndpoint("rediss://host").status().message(), HasSubstr("stunnel"));
  EXPECT_TRUE(absl::IsInvalidArgument(RedisTier::Make({.endpoint = "h", .prefix = "a{b"}, memory_.host).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(RedisTier::Make({.endpoint = "h", .chunk_bytes = 1}, memory_.host).status()));
  const RedisEndpoint endpoint = *ParseRedisEndpoint("redis://m%40e@[fe80::1]:7000/4");
  EXPECT_EQ(endpoint.host, "fe80::1");
  EXPECT_EQ(endpoint.port, 7000);
  EXPECT_EQ(endpoint.user, "m@e");
  EXPECT_EQ(endpoint.db, 4);
  EXPECT_EQ(endpoint.ToString(), "[fe80::1]:7000");
  EXPECT_EQ(ParseRedisEndpoint("localhost")->port, 6379);
}

}  // namespace
}  // namespace gdn::redis_tier_test
