// Kept prefixes and memory: which go, when, and what becomes of the sessions that began behind them.
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/cpp/durable_session.h"
#include "tests/integration/support/prefix_fixture.h"
#include "tests/support/temp_folder.h"

namespace gdn::prefix_room_test {
namespace {

TEST_F(Prefixes, GoOldestFirstWhereThereIsNoRoomAndSessionsGoOn) {
  GdnServerOptions options = Options();
  const TokenFeed feed = TokenFeed::Operator(2);
  int64_t bytes = 0;
  {
    TestServer server(options);
    bytes = feed.Create(Caller(server), "a").reply.state_bytes();
  }
  options.memory.prefix_cache_bytes = 2 * bytes + bytes / 2;
  TestServer server(options);
  const Caller caller(server);
  MakeKept(caller, feed, "a", {40}, 1);
  MakeKept(caller, feed, "b", {40}, 2);
  ASSERT_EQ(Create(caller, feed, "of-a", PrefixOf({40}, 1)).reply.prefix_tokens(), 40);
  MakeKept(caller, feed, "c", {40}, 3);
  EXPECT_EQ(Info(caller).entries(), 2);
  EXPECT_EQ(Info(caller).evictions(), 1);
  EXPECT_EQ(Info(caller).used_bytes(), 2 * bytes);
  EXPECT_EQ(Create(caller, feed, "of-b", PrefixOf({40}, 2)).reply.prefix_tokens(), 0);
  EXPECT_EQ(Create(caller, feed, "of-c", PrefixOf({40}, 3)).reply.prefix_tokens(), 40);
  MakeKept(caller, feed, "d", {40}, 4);
  EXPECT_EQ(Create(caller, feed, "of-a2", PrefixOf({40}, 1)).reply.prefix_tokens(), 0);
  ExpectTheBitsOf(caller, feed, "of-a", 40, {40}, {90});  // though its prefix is gone
}

TEST_F(Prefixes, AreNotKeptWhereThereIsNoRoomForOneAndNothingIsWrongThen) {
  for (const int64_t room : {int64_t{0}, int64_t{100}}) {
    GdnServerOptions options = Options();
    options.memory.prefix_cache_bytes = room;
    TestServer server(options);
    const Caller caller(server);
    const TokenFeed feed = TokenFeed::Operator(2);
    ASSERT_TRUE(feed.Create(caller, "a").ok());
    PrefillAll(caller, feed, "a", 0, {40});
    ASSERT_REPLY(const auto kept, Keep(caller, "a", PrefixOf({40})));
    EXPECT_FALSE(kept.kept());
    EXPECT_TRUE(RefusedAs(Keep(caller, "a", PrefixOf({41})), "PREFIX_MISMATCH"));
    ASSERT_REPLY(const v1::Session made, Create(caller, feed, "b", PrefixOf({40})));
    EXPECT_EQ(made.prefix_tokens(), 0);
    EXPECT_EQ(caller.Info().reply.has_prefixes(), room > 0);
  }
}

TEST_F(Prefixes, GoBeforeSessionsFromTheHostTier) {
  GdnServerOptions options = Options();
  const TokenFeed feed = TokenFeed::Operator(2);
  int64_t bytes = 0;
  {
    TestServer server(options);
    bytes = feed.Create(Caller(server), "a").reply.state_bytes();
  }
  options.memory.host_state_bytes = 3 * bytes;
  TestServer server(options);
  const Caller caller(server);
  for (int text = 1; text <= 3; ++text) MakeKept(caller, feed, "s" + std::to_string(text), {40}, text);
  EXPECT_EQ(Info(caller).entries(), 3);
  EXPECT_EQ(Info(caller).limit_bytes(), 3 * bytes);
  for (int sent = 1; sent <= 3; ++sent) {
    ASSERT_REPLY(const v1::Session evicted, caller.Evict("s" + std::to_string(sent), v1::STATE_TIER_HOST));
    EXPECT_EQ(evicted.tier(), v1::STATE_TIER_HOST);
    EXPECT_EQ(Info(caller).entries(), 3 - sent) << "sessions find all of their memory";
    EXPECT_EQ(TierNamed(caller, "host").sessions(), sent);
  }
  EXPECT_EQ(Info(caller).limit_bytes(), 0);
  EXPECT_FALSE(Keep(caller, "s1", PrefixOf({40}, 1)).reply.kept());
}

TEST_F(Prefixes, GoBeforeSessionsWhereTheQuotaOfHostMemoryIsReached) {
  GdnServerOptions options = Options();
  const TokenFeed feed = TokenFeed::Operator(2);
  int64_t bytes = 0;
  {
    TestServer server(options);
    bytes = feed.Create(Caller(server), "a").reply.state_bytes();
  }
  options.memory.host_state_bytes = 20 * bytes;
  options.quotas.each[Quota::kHostBytes] = 2 * bytes;
  TestServer server(options);
  const Caller caller(server);
  for (int text = 1; text <= 3; ++text) MakeKept(caller, feed, "s" + std::to_string(text), {40}, text);
  EXPECT_EQ(Info(caller).entries(), 2) << "the caller's own oldest went";
  for (int sent = 1; sent <= 2; ++sent) {
    ASSERT_TRUE(caller.Evict("s" + std::to_string(sent), v1::STATE_TIER_HOST).ok());
    EXPECT_EQ(Info(caller).entries(), 2 - sent);
  }
  EXPECT_TRUE(RefusedAs(caller.Evict("s3", v1::STATE_TIER_HOST), "QUOTA_EXCEEDED", {{"quota", "host-bytes"}}));
}

TEST_F(Prefixes, OfForksAndOfSessionsThatRestInHostMemoryCanBeKept) {
  const TempFolder folder;
  GdnServerOptions options = Options();
  options.memory.host_state_bytes = kManyBytes;
  options.states.disk.directory = folder.path() + "/states";
  TestServer server(options);
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Model();
  ASSERT_TRUE(feed.Create(caller, "parent").ok());
  PrefillAll(caller, feed, "parent", 0, {64});
  ASSERT_TRUE(caller.Fork("parent", {"child"}).ok());
  EXPECT_EQ(caller.Get("child").reply.prefix_tokens(), 0);
  PrefillAll(caller, feed, "child", 64, {128});
  ASSERT_TRUE(Keep(caller, "child", PrefixOf({64, 128})).reply.kept());
  ASSERT_TRUE(caller.Evict("parent", v1::STATE_TIER_HOST).ok());
  ASSERT_TRUE(Keep(caller, "parent", PrefixOf({64})).reply.kept());
  ASSERT_EQ(Create(caller, feed, "a", PrefixOf({64, 128})).reply.prefix_tokens(), 128);
  ExpectTheBitsOf(caller, feed, "a", 128, {64, 128}, {200});
  ASSERT_EQ(Create(caller, feed, "b", PrefixOf({64, 100})).reply.prefix_tokens(), 64);
  ExpectTheBitsOf(caller, feed, "b", 64, {64}, {200});
  // A state that has been on the disk came from a file, which does not record the calls that built it.
  ASSERT_TRUE(caller.Evict("child", v1::STATE_TIER_DISK).ok());
  ASSERT_REPLY(const auto there, Keep(caller, "parent", PrefixOf({64})));
  EXPECT_TRUE(there.kept());
  EXPECT_EQ(Drop(caller), 2);
  ASSERT_TRUE(caller.Prefill(feed.Prefill("child", {128, 0})).ok());  // brings it back
  EXPECT_TRUE(RefusedAs(Keep(caller, "child", PrefixOf({64, 128})), "PREFIX_MISMATCH", {{"field", "prefills"}}));
}

TEST_F(Prefixes, EndWithTheServerAndTheirSessionsTellWhereTheyBegan) {
  const TempFolder folder;
  GdnServerOptions options = Options();
  options.states.disk.directory = folder.path() + "/states";
  const TokenFeed feed = TokenFeed::Operator(2);
  {
    TestServer server(options);
    const Caller caller(server);
    MakeKept(caller, feed, "first", {40});
    ASSERT_EQ(Create(caller, feed, "a", PrefixOf({40})).reply.prefix_tokens(), 40);
    ASSERT_TRUE(server.Drain());
  }
  TestServer server(options);
  const Caller caller(server);
  EXPECT_EQ(Info(caller).entries(), 0);
  EXPECT_EQ(Create(caller, feed, "b", PrefixOf({40})).reply.prefix_tokens(), 0);
  ASSERT_REPLY(const v1::Session again, Create(caller, feed, "a", PrefixOf({40})));
  EXPECT_EQ(again.prefix_tokens(), 40);
  EXPECT_EQ(again.layers(1).token_count(), 40);
  ExpectTheBitsOf(caller, feed, "a", 40, {40}, {90});
}

TEST_F(Prefixes, ThatGoWhileSessionsBeginBehindThemHarmNone) {
  GdnServerOptions options = Options();
  TestServer server(options);
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(2);
  ASSERT_TRUE(feed.Create(caller, "keeper").ok());
  PrefillAll(caller, feed, "keeper", 0, {40});
  ASSERT_TRUE(feed.Create(caller, "computed").ok());
  PrefillAll(caller, feed, "computed", 0, {40});
  const std::string state = caller.State("computed");
  const std::string rest = PrefillAll(caller, feed, "computed", 40, {60});
  std::atomic<bool> over = false;
  std::thread other([&] {
    while (!over) {
      EXPECT_TRUE(Keep(caller, "keeper", PrefixOf({40})).ok());
      Drop(caller);
    }
  });
  std::vector<std::thread> beginners;
  for (int t = 0; t < 2; ++t) {
    beginners.emplace_back([&, t] {
      for (int i = 0; i < 40; ++i) {
        const std::string id = "b" + std::to_string(t) + "-" + std::to_string(i);
        const auto made = Create(caller, feed, id, PrefixOf({40}));
        ASSERT_TRUE(made.ok()) << made.status.error_message();
        const int64_t begin = made.reply.prefix_tokens();
        ASSERT_TRUE(begin == 0 || begin == 40);
        if (begin == 0) PrefillAll(caller, feed, id, 0, {40});
        EXPECT_EQ(caller.State(id), state);
        EXPECT_EQ(PrefillAll(caller, feed, id, 40, {60}), rest);
        EXPECT_TRUE(caller.Delete(id).ok());
      }
    });
  }
  for (std::thread& thread : beginners) thread.join();
  over = true;
  other.join();
  EXPECT_EQ(Info(caller).hits() + Info(caller).misses(), 80);
  Drop(caller);
  EXPECT_EQ(Info(caller).used_bytes(), 0);
}

TEST_F(Prefixes, BehindWhichADurableSessionBeganAreBegunBehindAgainOrTheLossIsTold) {
  TestServer server(Options());
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(2);
  MakeKept(caller, feed, "first", {40});
  const auto client = std::make_unique<Client>(server.channel());
  v1::CreateSessionRequest create = feed.Creation("durable");
  *create.mutable_prefix() = PrefixOf({40, 60, 80});
  auto session = DurableSession::Create(*client, create, {.first_backoff = absl::Milliseconds(1)});
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_EQ((*session)->session().prefix_tokens(), 40);
  EXPECT_EQ((*session)->token_count(1), 40);
  for (const int layer : {0, 1}) ASSERT_TRUE((*session)->Prefill(feed.Prefill("durable", {40, 20}, layer)).ok());
  ASSERT_TRUE(Keep(caller, "durable", PrefixOf({40, 60})).reply.kept()) << "a longer one is known from here on";
  const std::string state = caller.State("durable");
  ASSERT_TRUE(caller.Delete("durable").ok()) << "as if the server had lost it";
  ASSERT_TRUE((*session)->Prefill(feed.Prefill("durable", {60, 0})).ok());
  EXPECT_EQ((*session)->stats().recreations, 1);
  EXPECT_EQ(caller.State("durable"), state);
  Drop(caller);
  ASSERT_TRUE(caller.Delete("durable").ok());
  const auto lost = (*session)->Prefill(feed.Prefill("durable", {60, 5}));
  EXPECT_EQ(lost.status().code(), absl::StatusCode::kDataLoss) << lost.status();
  EXPECT_NE(lost.status().message().find("and its prefix are gone"), std::string_view::npos) << lost.status();
  EXPECT_EQ(caller.Get("durable").reason(), "SESSION_NOT_FOUND");
}

}  // namespace
}  // namespace gdn::prefix_room_test
