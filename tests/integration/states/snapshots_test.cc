// Snapshots: read-only states under the client's own keys. Sessions start from them bit for bit, the owner goes on as
// if there were none, and a client is told of each one that the server loses.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/snapshot_calls.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::snapshots_test {
namespace {

using Stub = v1::GdnService::Stub;

constexpr TokenRange kPrompt = {0, 5};
constexpr int64_t kOwn = 40;  // where tokens begin that only one side takes
constexpr int kLogCapacity = 16;
constexpr int kLayers = 2;

// Principals by the SHA-256 of the tokens "1" and "2".
constexpr char kPrincipals[] =
    R"({"principals": [
      {"name": "greedy", "sha256": ["16c2e9a3b8c0efc5d394421c9bdfac3ff12ce2c91b8f0208e0f75b013f22cb62"]},
      {"name": "modest", "sha256": ["cfcead19ff9b06ed6215a7c39808b52c03f27782522bc6070611c914f14a6604"]}]})";

v1::ListSnapshotsResponse List(const Caller& caller, int64_t lost_after = 0, int page_size = 1000,
                               const std::string& token = "") {
  v1::ListSnapshotsRequest request;
  request.set_page_size(page_size);
  request.set_page_token(token);
  request.set_lost_after(lost_after);
  const auto outcome = Call(caller, &Stub::ListSnapshots, request);
  EXPECT_TRUE(outcome.ok()) << outcome.status.error_message();
  return outcome.reply;
}

std::vector<std::string> Keys(const v1::ListSnapshotsResponse& list) {
  std::vector<std::string> keys;
  for (const v1::Snapshot& snapshot : list.snapshots()) keys.push_back(snapshot.key());
  return keys;
}
std::vector<std::string> Keys(const Caller& caller) { return Keys(List(caller)); }
std::vector<std::string> LostKeys(const v1::ListSnapshotsResponse& list) {
  std::vector<std::string> keys;
  for (const v1::LostSnapshot& lost : list.lost()) keys.push_back(lost.key());
  return keys;
}

v1::Snapshot Named(const Caller& caller, const std::string& key) {
  const v1::ListSnapshotsResponse list = List(caller);
  for (const v1::Snapshot& snapshot : list.snapshots()) {
    if (snapshot.key() == key) return snapshot;
  }
  ADD_FAILURE() << "no snapshot " << key;
  return {};
}

std::string DeleteKey(const Caller& caller, const std::string& key) {
  v1::DeleteSnapshotsRequest request;
  request.add_keys(key);
  const auto outcome = Call(caller, &Stub::DeleteSnapshots, request);
  if (!outcome.ok()) return outcome.reason();
  return outcome.reply.statuses(0).code() == 0 ? "" : ErrorInfoOf(outcome.reply.statuses(0)).reason();
}

using KeyList = std::vector<std::string>;

class Snapshots : public ::testing::Test {
 protected:
  static int64_t SessionBytes() {
    TestServer server;
    return Caller(server).CreateOperator("probe", SmallOperator(kLayers)).reply.state_bytes();
  }
  static int64_t Used(const Caller& caller) { return caller.Info().reply.state_bytes_used(); }
  // A session that has seen the prompt and `decoded` tokens in each layer.
  void Feed(const Caller& caller, const std::string& id, int64_t decoded = 0, TokenRange more = {0, 0}) const {
    feed_.Start(caller, id, kPrompt, decoded);
    if (more.count > 0) feed_.DecodeAll(caller, id, more);
  }

  const int64_t bytes_ = SessionBytes();
  const TempFolder folder_;
  TokenFeed feed_ = TokenFeed::Operator(kLayers);
};

TEST_F(Snapshots, GiveTheirBitsToSessionsAtEveryLogOffsetWhileTheOwnerGoesOn) {
  TestServer server({.models = TokenFeed::Models()});
  const Caller caller(server);
  for (const TokenFeed& feed : {TokenFeed::Operator(kLayers), TokenFeed::Model()}) {
    feed_ = feed;
    for (int64_t offset = 0; offset <= kLogCapacity; ++offset) {
      SCOPED_TRACE(feed.name() + " offset " + std::to_string(offset));
      for (const char* id : {"owner", "plain", "fed"}) Feed(caller, id, offset);
      ASSERT_REPLY(const auto taken, Take(caller, "owner", "k"));
      EXPECT_EQ(taken.snapshot().key(), "k");
      EXPECT_EQ(taken.snapshot().layers(0).token_count(), kPrompt.count + offset);
      EXPECT_EQ(taken.snapshot().tier(), v1::STATE_TIER_DEVICE);
      // The owner writes, over a fold, as a session does that nobody has taken a snapshot of.
      EXPECT_EQ(feed.DecodeAll(caller, "owner", {kOwn, kLogCapacity + 3}),
                feed.DecodeAll(caller, "plain", {kOwn, kLogCapacity + 3}));
      EXPECT_EQ(caller.State("owner"), caller.State("plain"));
      ASSERT_REPLY(const auto made, Begin(caller, "made", "k"));
      EXPECT_EQ(made.session().layers(0).token_count(), kPrompt.count + offset);
      EXPECT_EQ(made.session().affinity(), "made");
      ASSERT_REPLY(const auto forked, ForkKey(caller, "k", {"forked", "idle"}));
      for (const char* id : {"made", "forked"}) EXPECT_EQ(caller.State(id), caller.State("fed")) << id;
      const std::string expected = feed.DecodeAll(caller, "fed", {kOwn + 50, kLogCapacity + 3});
      EXPECT_EQ(feed.DecodeAll(caller, "made", {kOwn + 50, kLogCapacity + 3}), expected);
      EXPECT_EQ(feed.DecodeAll(caller, "forked", {kOwn + 50, kLogCapacity + 3}), expected);
      // The snapshot is as it was, and outlives all others.
      for (const char* id : {"owner", "plain", "fed", "made", "forked"}) ASSERT_TRUE(caller.Delete(id).ok());
      ASSERT_TRUE(Begin(caller, "late", "k").ok());
      EXPECT_EQ(caller.State("late"), caller.State("idle"));
      EXPECT_EQ(feed.DecodeAll(caller, "late", {kOwn + 50, kLogCapacity + 3}), expected);
      for (const char* id : {"idle", "late"}) ASSERT_TRUE(caller.Delete(id).ok());
      EXPECT_EQ(DeleteKey(caller, "k"), "");
      EXPECT_EQ(Used(caller), 0);
    }
  }
}

TEST_F(Snapshots, GiveTheirBitsAfterAPrefillAndToPrefills) {
  TestServer server({.models = TokenFeed::Models()});
  const Caller caller(server);
  for (const TokenFeed& feed : {TokenFeed::Operator(kLayers), TokenFeed::Model()}) {
    feed_ = feed;
    for (const char* id : {"owner", "fed"}) Feed(caller, id, 3);
    ASSERT_TRUE(caller.Prefill(feed.Prefill("owner", {50, 70})).ok());
    ASSERT_TRUE(Take(caller, "owner", "k").ok());
    ASSERT_TRUE(caller.Prefill(feed.Prefill("owner", {200, 9})).ok());
    ASSERT_TRUE(caller.Prefill(feed.Prefill("fed", {50, 70})).ok());
    ASSERT_TRUE(Begin(caller, "made", "k").ok());
    EXPECT_EQ(caller.State("made"), caller.State("fed"));
    const auto made = caller.Prefill(feed.Prefill("made", {120, 33}));
    const auto fed = caller.Prefill(feed.Prefill("fed", {120, 33}));
    ASSERT_TRUE(made.ok() && fed.ok());
    EXPECT_EQ(made.reply.output().data(), fed.reply.output().data());
    EXPECT_EQ(caller.State("made"), caller.State("fed"));
    for (const char* id : {"owner", "made", "fed"}) ASSERT_TRUE(caller.Delete(id).ok());
    EXPECT_EQ(DeleteKey(caller, "k"), "");
  }
}

TEST_F(Snapshots, HoldAPendingDraftThatEachSessionDecidesAlone) {
  TestServer server;
  const Caller caller(server);
  constexpr int kDraft = 6;
  for (const int64_t offset : {0, 12, 15}) {
    SCOPED_TRACE(offset);
    Feed(caller, "owner", offset);
    ASSERT_TRUE(caller.Decode(feed_.Draft({"owner"}, {TokenRange{kOwn, kDraft}})).ok());
    ASSERT_REPLY(const auto taken, Take(caller, "owner", "k"));
    EXPECT_EQ(taken.snapshot().layers(0).draft_length(), kDraft);
    ASSERT_TRUE(caller.Accept("owner", 2).ok());
    const std::map<std::string, int> accepted = {{"a", 0}, {"b", kDraft}, {"c", 4}};
    for (const auto& [id, count] : accepted) {
      ASSERT_TRUE(Begin(caller, id, "k").ok());
      ASSERT_TRUE(caller.Accept(id, count).ok());
      Feed(caller, "fed" + id, offset, {kOwn, count});
      EXPECT_EQ(caller.State(id), caller.State("fed" + id));
      EXPECT_EQ(feed_.DecodeAll(caller, id, {200, 18}), feed_.DecodeAll(caller, "fed" + id, {200, 18}));
      for (const std::string& each : {id, "fed" + id}) ASSERT_TRUE(caller.Delete(each).ok());
    }
    ASSERT_TRUE(caller.Delete("owner").ok());
    EXPECT_EQ(DeleteKey(caller, "k"), "");
  }
}

TEST_F(Snapshots, HaveTheLayersOfTheirSession) {
  TestServer server({.models = TokenFeed::Models()});
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Model();
  for (const char* id : {"owner", "fed"}) {
    v1::CreateSessionRequest request = feed.Creation(id);
    for (const int layer : {0, 2}) request.add_layers(layer);
    ASSERT_TRUE(caller.Create(request).ok());
    ASSERT_TRUE(caller.Prefill(feed.Prefill(id, {0, 9}, /*layer=*/2)).ok());  // layer 0 has seen nothing
  }
  ASSERT_REPLY(const auto taken, Take(caller, "owner", "k"));
  EXPECT_EQ(taken.snapshot().model(), "models/next");
  ASSERT_EQ(taken.snapshot().layers_size(), 2);
  EXPECT_EQ(taken.snapshot().layers(1).layer(), 2);
  feed.DecodeAll(caller, "owner", {kOwn, 4}, 0);
  ASSERT_REPLY(const auto made, Begin(caller, "made", "k"));
  EXPECT_EQ(made.session().layers_size(), 2);
  for (const int layer : {0, 2}) {
    EXPECT_EQ(feed.DecodeAll(caller, "made", {20, 18}, layer), feed.DecodeAll(caller, "fed", {20, 18}, layer));
  }
  EXPECT_EQ(caller.State("made"), caller.State("fed"));
}

TEST_F(Snapshots, CanBeTakenOfASessionThatHasSeenNothing) {
  TestServer server;
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "owner").ok());
  ASSERT_TRUE(Take(caller, "owner", "k", 0).ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("owner", {100, 9})).ok());
  ASSERT_TRUE(Begin(caller, "made", "k").ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("made", kPrompt)).ok());
  feed_.Start(caller, "fed", kPrompt);
  EXPECT_EQ(feed_.DecodeAll(caller, "made", {kOwn, 20}), feed_.DecodeAll(caller, "fed", {kOwn, 20}));
}

TEST_F(Snapshots, AreSteppedByNobodyAndAreInNoListOfSessions) {
  TestServer server({.states = {.disk = {.directory = folder_.path()}}});
  const Caller caller(server);
  Feed(caller, "owner", 3);
  ASSERT_TRUE(Take(caller, "owner", "k").ok());
  const std::string before = Named(caller, "k").SerializeAsString();
  for (const std::string id : {"+k", "snapshots/k"}) {
    SCOPED_TRACE(id);
    EXPECT_TRUE(RefusedAs(caller.Prefill(feed_.Prefill(id, {50, 3})), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode({id}, {50, 1})), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Step(AsStep(feed_.Decode({id}, {50, 1}))), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Accept(id, 0), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Restore(id), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Delete(id), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(caller.Get(id), "INVALID_NAME"));
    EXPECT_TRUE(RefusedAs(feed_.Create(caller, id), "INVALID_NAME"));
    v1::ResetSessionsRequest reset;
    reset.add_resets()->set_name("sessions/" + id);
    const auto refused = Call(caller, &Stub::ResetSessions, reset);
    EXPECT_EQ(ErrorInfoOf(refused.reply.results(0).error()).reason(), "INVALID_NAME");
  }
  // The name of a session as it is for all others.
  EXPECT_TRUE(RefusedAs(caller.Decode(feed_.Decode({"k"}, {50, 1})), "SESSION_NOT_FOUND"));
  EXPECT_EQ(Named(caller, "k").SerializeAsString(), before);
  const auto sessions = caller.List(100);
  ASSERT_EQ(sessions.reply.sessions_size(), 1);
  EXPECT_EQ(sessions.reply.sessions(0).name(), "sessions/owner");
  EXPECT_EQ(caller.Info().reply.session_count(), 1);
  ASSERT_TRUE(feed_.Create(caller, "k").ok()) << "a key is no session's id";
  ASSERT_TRUE(Begin(caller, "made", "k").ok());
  EXPECT_EQ(caller.State("made"), caller.State("owner"));
}

TEST_F(Snapshots, ShareTheOwnersMemoryUntilItFolds) {
  TestServer server;
  const Caller caller(server);
  Feed(caller, "owner");
  const int64_t alone = Used(caller);
  ASSERT_REPLY(const auto first, Take(caller, "owner", "first"));
  EXPECT_EQ(first.snapshot().state_bytes(), bytes_);
  // Only the layer that has seen tokens has a state at all.
  const int64_t state = bytes_ / kLayers;
  EXPECT_EQ(first.snapshot().shared_bytes(), state);
  EXPECT_EQ(Used(caller), alone + state) << "room for the owner's next write";
  ASSERT_TRUE(Take(caller, "owner", "second").ok());
  EXPECT_EQ(Used(caller), alone + state) << "the owner has not moved, so both snapshots are of one state";
  feed_.DecodeAll(caller, "owner", {kOwn, 1});
  EXPECT_EQ(Named(caller, "first").shared_bytes(), state) << "the owner reads its base there";
  EXPECT_EQ(Used(caller), alone + state);
  feed_.DecodeAll(caller, "owner", {kOwn + 1, kLogCapacity});
  EXPECT_EQ(Named(caller, "first").shared_bytes(), state) << "with the other snapshot";
  EXPECT_EQ(DeleteKey(caller, "second"), "");
  EXPECT_EQ(Named(caller, "first").shared_bytes(), 0);
  EXPECT_EQ(Used(caller), alone + state);
  EXPECT_EQ(DeleteKey(caller, "first"), "");
  EXPECT_EQ(Used(caller), alone);
}

TEST_F(Snapshots, AreIdempotentByKeyAndNeverTakeAnOldStateForANewOne) {
  TestServer server;
  const Caller caller(server);
  Feed(caller, "owner", 3);
  const int64_t count = kPrompt.count + 3;
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("owner", {0, count}, 1)).ok());
  ASSERT_REPLY(const auto taken, Take(caller, "owner", "k", count));
  ASSERT_REPLY(const auto loose, Take(caller, "owner", "loose"));
  const int64_t used = Used(caller);
  for (const auto& [key, expected] :
       {std::pair("k", std::optional(count)), std::pair("loose", std::optional<int64_t>())}) {
    ASSERT_REPLY(const auto again, Take(caller, "owner", key, expected));
    EXPECT_EQ(again.snapshot().create_time().nanos(), (expected ? taken : loose).snapshot().create_time().nanos());
  }
  EXPECT_EQ(Used(caller), used);
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "k"), "SNAPSHOT_EXISTS", {{"snapshot", "k"}})) << "another request";
  Feed(caller, "other", 3);
  EXPECT_TRUE(RefusedAs(Take(caller, "other", "k", count), "SNAPSHOT_EXISTS", {{"session", "sessions/other"}}));
  for (const int layer : {0, 1}) feed_.DecodeAll(caller, "owner", {kOwn, 1}, layer);
  EXPECT_TRUE(Take(caller, "owner", "k", count).ok()) << "a retry whose first answer was lost";
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "k", count + 1), "SNAPSHOT_EXISTS"));
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "loose"), "SNAPSHOT_EXISTS")) << "the session has moved on";
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "new", count), "TOKEN_COUNT_MISMATCH"));
  // After a reset the same counts mean another state.
  v1::ResetSessionsRequest reset;
  reset.add_resets()->set_name("sessions/owner");
  ASSERT_TRUE(Call(caller, &Stub::ResetSessions, reset).ok());
  for (const int layer : {0, 1}) ASSERT_TRUE(caller.Prefill(feed_.Prefill("owner", {90, count}, layer)).ok());
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "k", count), "SNAPSHOT_EXISTS"));
  EXPECT_EQ(Keys(caller), (KeyList{"k", "loose"}));
  // Sessions that start from one are idempotent too, even once it is gone.
  ASSERT_TRUE(Begin(caller, "made", "k").ok());
  ASSERT_TRUE(ForkKey(caller, "k", {"forked"}).ok());
  EXPECT_EQ(DeleteKey(caller, "k"), "");
  EXPECT_TRUE(Begin(caller, "made", "k").ok());
  EXPECT_TRUE(RefusedAs(Begin(caller, "made", "loose"), "SESSION_EXISTS"));
  EXPECT_TRUE(RefusedAs(Begin(caller, "late", "k"), "SNAPSHOT_NOT_FOUND"));
}

TEST_F(Snapshots, RefuseRequestsThatAreWrongAndLeaveAllAsItWas) {
  std::ofstream(folder_.path() + "/principals.json") << kPrincipals;
  TestServer server({.models = TokenFeed::Models(), .principals = {.file = folder_.path() + "/principals.json"}});
  const Caller caller(server, "Bearer 1"), other(server, "Bearer 2");
  Feed(caller, "owner", 3);
  ASSERT_TRUE(Take(caller, "owner", "k").ok());
  const auto everything = [&] {
    std::string all = caller.State("owner") + std::to_string(Used(caller));
    for (const Caller& each : {caller, other}) {
      const auto snapshots = List(each);
      for (const v1::Snapshot& snapshot : snapshots.snapshots()) all += snapshot.SerializeAsString();
      const auto sessions = each.List(100);
      for (const v1::Session& session : sessions.reply.sessions()) all += session.name();
    }
    return all;
  };
  const auto create = [&](const std::function<void(v1::CreateSessionRequest&)>& change) {
    v1::CreateSessionRequest request;
    request.set_session_id("new");
    request.set_snapshot("k");
    change(request);
    return Call(caller, &Stub::CreateSession, request).status;
  };
  const auto fork = [&](const std::function<void(v1::ForkSessionRequest&)>& change) {
    v1::ForkSessionRequest request;
    request.set_snapshot("k");
    request.add_session_ids("new");
    change(request);
    return Call(caller, &Stub::ForkSession, request).status;
  };
  auto at_epoch = SnapshotOf("owner", "new");
  at_epoch.set_session_epoch(7);
  v1::ListSnapshotsRequest bad_page, bad_size;
  bad_page.set_page_token("after:");
  bad_size.set_page_size(-1);
  v1::SnapshotSessionsRequest none, twice, many;
  for (int i = 0; i < 2; ++i) *twice.add_requests() = SnapshotOf("owner", "twice");
  for (int i = 0; i < 5000; ++i) *many.add_requests() = SnapshotOf("owner", "key" + std::to_string(i));
  v1::DeleteSnapshotsRequest delete_none, delete_twice;
  for (int i = 0; i < 2; ++i) delete_twice.add_keys("k");
  const std::string long_key(129, 'x');
  ExpectRefused(
      {
          {"empty key", "INVALID_NAME", "key", [&] { return Take(caller, "owner", "").status; }},
          {"long key", "INVALID_NAME", "key", [&] { return Take(caller, "owner", long_key).status; }},
          {"key of bytes", "INVALID_NAME", "key", [&] { return Take(caller, "owner", "a\nb").status; }},
          {"key with a mark", "INVALID_NAME", "key", [&] { return Take(caller, "owner", "+k").status; }},
          {"key with a path", "INVALID_NAME", "key", [&] { return Take(caller, "owner", "../k").status; }},
          {"unknown session", "SESSION_NOT_FOUND", "", [&] { return Take(caller, "none", "new").status; }},
          {"another's session", "SESSION_NOT_FOUND", "", [&] { return Take(other, "owner", "new").status; }},
          {"a snapshot's snapshot", "INVALID_NAME", "", [&] { return Take(caller, "+k", "new").status; }},
          {"epoch", "EPOCH_MISMATCH", "", [&] { return Call(caller, &Stub::SnapshotSession, at_epoch).status; }},
          {"count", "TOKEN_COUNT_MISMATCH", "", [&] { return Take(caller, "owner", "new", 99).status; }},
          {"another's key", "SNAPSHOT_NOT_FOUND", "", [&] { return Begin(other, "new", "k").status; }},
          {"unknown key", "SNAPSHOT_NOT_FOUND", "", [&] { return Begin(caller, "new", "none").status; }},
          {"malformed key", "INVALID_NAME", "key", [&] { return Begin(caller, "new", "a/b").status; }},
          {"fork of another's", "SNAPSHOT_NOT_FOUND", "", [&] { return ForkKey(other, "k", {"new"}).status; }},
          {"other model", "STATE_MISMATCH", "spec",
           [&] { return create([](auto& r) { r.set_model("models/next"); }); }},
          {"other operator", "STATE_MISMATCH", "spec",
           [&] { return create([](auto& r) { *r.mutable_operator_() = SmallOperator(kLayers + 1); }); }},
          {"and states", "INVALID_SPEC", "initial_states",
           [&] { return create([](auto& r) { r.add_initial_states(); }); }},
          {"and prefix", "INVALID_SPEC", "prefix", [&] { return create([](auto& r) { r.mutable_prefix(); }); }},
          {"and layers", "INVALID_SPEC", "layers", [&] { return create([](auto& r) { r.add_layers(0); }); }},
          {"fork of both", "INVALID_SPEC", "name", [&] { return fork([](auto& r) { r.set_name("sessions/owner"); }); }},
          {"fork at epoch", "INVALID_SPEC", "session_epoch",
           [&] { return fork([](auto& r) { r.set_session_epoch(1); }); }},
          {"fork of neither", "INVALID_NAME", "session", [&] { return fork([](auto& r) { r.clear_snapshot(); }); }},
          {"page", "INVALID_PAGE_TOKEN", "", [&] { return Call(caller, &Stub::ListSnapshots, bad_page).status; }},
          {"page size", "INVALID_SPEC", "page_size",
           [&] { return Call(caller, &Stub::ListSnapshots, bad_size).status; }},
          {"none", "BATCH_TOO_LARGE", "", [&] { return Call(caller, &Stub::SnapshotSessions, none).status; }},
          {"twice", "DUPLICATE_SESSION", "", [&] { return Call(caller, &Stub::SnapshotSessions, twice).status; }},
          {"many", "BATCH_TOO_LARGE", "", [&] { return Call(caller, &Stub::SnapshotSessions, many).status; }},
          {"no deletion", "BATCH_TOO_LARGE", "",
           [&] { return Call(caller, &Stub::DeleteSnapshots, delete_none).status; }},
          {"delete twice", "DUPLICATE_SESSION", "",
           [&] { return Call(caller, &Stub::DeleteSnapshots, delete_twice).status; }},
      },
      everything);
  EXPECT_NE(
      Call(caller, &Stub::SnapshotSessions, none).status.error_message().find("requests has 0 entries, expected 1"),
      std::string::npos);
  EXPECT_NE(Call(caller, &Stub::DeleteSnapshots, delete_none).status.error_message().find("keys has 0 entries"),
            std::string::npos);
  EXPECT_EQ(DeleteKey(other, "k"), "SNAPSHOT_NOT_FOUND");
  EXPECT_EQ(DeleteKey(caller, "none"), "SNAPSHOT_NOT_FOUND");
  EXPECT_EQ(DeleteKey(caller, ""), "INVALID_NAME");
  EXPECT_EQ(Keys(caller), KeyList{"k"});
  EXPECT_EQ(List(other).snapshot_loss_mark(), 0) << "the other has none, and hears of nobody's";
}

TEST_F(Snapshots, AreMadeAndListedMany) {
  TestServer server;
  const Caller caller(server);
  v1::SnapshotSessionsRequest request;
  KeyList keys;
  for (int i = 0; i < 6; ++i) {
    const std::string id = "s" + std::to_string(i);
    Feed(caller, id, i);
    *request.add_requests() = SnapshotOf(id, "k" + std::to_string(i));
    keys.push_back("k" + std::to_string(i));
  }
  *request.add_requests() = SnapshotOf("none", "k9");
  *request.add_requests() = SnapshotOf("s1", "k10", 99);
  ASSERT_REPLY(const auto taken, Call(caller, &Stub::SnapshotSessions, request));
  ASSERT_EQ(taken.results_size(), 8);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(taken.results(i).snapshot().layers(0).token_count(), kPrompt.count + i) << i;
  }
  EXPECT_EQ(ErrorInfoOf(taken.results(6).error()).reason(), "SESSION_NOT_FOUND");
  EXPECT_EQ(ErrorInfoOf(taken.results(7).error()).reason(), "TOKEN_COUNT_MISMATCH");
  KeyList paged;
  std::string token;
  do {
    const auto page = List(caller, 0, 4, token);
    for (const std::string& key : Keys(page)) paged.push_back(key);
    token = page.next_page_token();
  } while (!token.empty());
  EXPECT_EQ(paged, keys);
  v1::DeleteSnapshotsRequest deletions;
  for (const char* key : {"k1", "none", "k3"}) deletions.add_keys(key);
  ASSERT_REPLY(const auto deleted, Call(caller, &Stub::DeleteSnapshots, deletions));
  EXPECT_EQ(deleted.statuses(0).code(), 0);
  EXPECT_EQ(ErrorInfoOf(deleted.statuses(1)).reason(), "SNAPSHOT_NOT_FOUND");
  EXPECT_EQ(Keys(caller), (KeyList{"k0", "k2", "k4", "k5"}));
  EXPECT_TRUE(List(caller).lost().empty()) << "what the client deletes is not lost";
}

TEST_F(Snapshots, AreEvictedLeastRecentlyUsedFirstAndEachAnswerTells) {
  TestServer server({.memory = {.snapshot_bytes = 3 * bytes_}});
  const Caller caller(server);
  Feed(caller, "owner");
  EXPECT_EQ(List(caller).snapshot_loss_mark(), 0);
  ASSERT_REPLY(const auto first, Take(caller, "owner", "a"));
  const int64_t none_lost = first.snapshot_loss_mark();
  EXPECT_NE(none_lost, 0);
  for (const char* key : {"b", "c"}) {
    ASSERT_REPLY(const auto taken, Take(caller, "owner", key));
    EXPECT_EQ(taken.snapshot_loss_mark(), none_lost);
  }
  ASSERT_REPLY(const auto step, caller.Decode(feed_.Decode({"owner"}, {kOwn, 1})));
  EXPECT_EQ(step.snapshot_loss_mark(), none_lost);
  ASSERT_TRUE(Begin(caller, "made", "a").ok()) << "a use";
  List(caller);  // is none

  ASSERT_REPLY(const auto taken, Take(caller, "owner", "d"));
  const int64_t mark = none_lost + 1;
  EXPECT_EQ(taken.snapshot_loss_mark(), mark);
  ASSERT_REPLY(const auto prefill, caller.Prefill(feed_.Prefill("owner", {90, 3})));
  EXPECT_EQ(prefill.snapshot_loss_mark(), mark);
  const v1::SnapshotInfo info = caller.Info().reply.snapshots();
  EXPECT_EQ(info.limit_bytes(), 3 * bytes_);
  EXPECT_EQ(info.held_bytes(), 3 * bytes_);
  EXPECT_EQ(info.count(), 3);
  EXPECT_EQ(info.evicted(), 1);
  EXPECT_EQ(info.damaged(), 0);
  ASSERT_REPLY(const auto decode, caller.Decode(feed_.Decode({"owner"}, {95, 1})));
  EXPECT_EQ(decode.snapshot_loss_mark(), mark);
  ASSERT_REPLY(const auto mixed, caller.Step(AsStep(feed_.Decode({"owner"}, {96, 1}))));
  EXPECT_EQ(mixed.snapshot_loss_mark(), mark);
  const auto context = caller.NewContext();
  const auto stream = server.stub().StreamDecode(context.get());
  const auto streamed = Converse(*stream, std::vector{StreamStep(feed_.Decode({"owner"}, {97, 1}))});
  EXPECT_EQ(streamed.front().result().snapshot_loss_mark(), mark);
  ASSERT_REPLY(const auto forked, caller.Fork("owner", {"child"}));
  EXPECT_EQ(forked.snapshot_loss_mark(), mark);
  v1::CreateSessionsRequest creations;
  *creations.add_requests() = feed_.Creation("plain");
  ASSERT_REPLY(const auto created, Call(caller, &Stub::CreateSessions, creations));
  EXPECT_EQ(created.snapshot_loss_mark(), mark);
  ASSERT_REPLY(const auto begun, Begin(caller, "begun", "c"));
  EXPECT_EQ(begun.snapshot_loss_mark(), mark);

  const auto list = List(caller);
  EXPECT_EQ(Keys(list), (KeyList{"a", "c", "d"}));
  ASSERT_EQ(LostKeys(list), KeyList{"b"});
  EXPECT_EQ(list.lost(0).cause(), v1::SNAPSHOT_LOSS_CAUSE_EVICTED);
  EXPECT_EQ(list.lost(0).mark(), mark);
  EXPECT_FALSE(list.lost_incomplete());
  EXPECT_EQ(list.snapshot_loss_mark(), mark);
  EXPECT_TRUE(RefusedAs(Begin(caller, "late", "b"), "SNAPSHOT_NOT_FOUND", {{"snapshot", "b"}, {"lost", "evicted"}}));

  // In the order of their uses: a, d, c.
  for (const char* key : {"e", "f", "g"}) ASSERT_TRUE(Take(caller, "owner", key).ok());
  EXPECT_EQ(LostKeys(List(caller)), (KeyList{"b", "a", "d", "c"}));
  EXPECT_EQ(LostKeys(List(caller, mark)), (KeyList{"a", "d", "c"})) << "since the last listing";
  EXPECT_TRUE(LostKeys(List(caller, mark + 3)).empty());
  EXPECT_TRUE(List(caller, mark + 99).lost_incomplete()) << "a mark of another server process";
  EXPECT_EQ(Keys(caller), (KeyList{"e", "f", "g"}));
}

TEST_F(Snapshots, OfTheCallerThatIsOverItsShareAreEvictedFirst) {
  std::ofstream(folder_.path() + "/principals.json") << kPrincipals;
  // The two principals and all others have a third each: two snapshots.
  TestServer server(
      {.memory = {.snapshot_bytes = 6 * bytes_}, .principals = {.file = folder_.path() + "/principals.json"}});
  const Caller greedy(server, "Bearer 1"), modest(server, "Bearer 2");
  Feed(greedy, "owner");
  Feed(modest, "owner");
  ASSERT_TRUE(Take(modest, "owner", "m1").ok());  // the oldest of all
  ASSERT_REPLY(const auto second, Take(modest, "owner", "m2"));
  for (const char* key : {"g1", "g2", "g3", "g4", "g5", "g6"}) ASSERT_TRUE(Take(greedy, "owner", key).ok()) << key;
  EXPECT_EQ(Keys(greedy), (KeyList{"g3", "g4", "g5", "g6"})) << "all that was free, then its own in order";
  EXPECT_EQ(LostKeys(List(greedy)), (KeyList{"g1", "g2"}));
  EXPECT_EQ(Keys(modest), (KeyList{"m1", "m2"}));
  ASSERT_REPLY(const auto third, Take(modest, "owner", "m3"));
  EXPECT_EQ(Keys(modest), (KeyList{"m1", "m2", "m3"})) << "the other is further over its share";
  EXPECT_EQ(LostKeys(List(greedy)), (KeyList{"g1", "g2", "g3"}));
  EXPECT_EQ(third.snapshot_loss_mark(), second.snapshot_loss_mark()) << "nobody hears of another's losses";
}

TEST_F(Snapshots, LargerThanTheirBudgetOrTheDeviceAreRefusedAndLeaveAllAsItWas) {
  TestServer small({.memory = {.snapshot_bytes = bytes_ - 1}});
  const Caller caller(small);
  Feed(caller, "owner", 3);
  const int64_t used = Used(caller);
  EXPECT_TRUE(RefusedAs(Take(caller, "owner", "k"), "BYTES_EXHAUSTED", {{"pool", "snapshot"}}));
  EXPECT_EQ(Used(caller), used);

  // Room for one session and a half on the device, and none below it.
  TestServer full({.memory = {.device_state_bytes = 3 * bytes_ / 2, .snapshot_bytes = 9 * bytes_}});
  const Caller there(full);
  Feed(there, "owner", 3);
  for (int layer = 1; layer < kLayers; ++layer) {
    ASSERT_TRUE(there.Prefill(feed_.Prefill("owner", kPrompt, layer)).ok());
  }
  const std::string state = there.State("owner");
  const int64_t used_there = Used(there);
  EXPECT_TRUE(RefusedAs(Take(there, "owner", "k"), "STATE_BUDGET_EXHAUSTED"));
  EXPECT_TRUE(Keys(there).empty());
  EXPECT_EQ(Used(there), used_there);
  EXPECT_EQ(full.server().ledger().held(BytePool::kSnapshots), 0);
  EXPECT_EQ(there.State("owner"), state);
  EXPECT_EQ(feed_.DecodeAll(there, "owner", {kOwn, 20}), feed_.DecodeAll(caller, "owner", {kOwn, 20}));
}

TEST_F(Snapshots, GiveWayToSessionsOnADeviceWithoutTiers) {
  // Room for six sessions, of which each snapshot takes one, as its owner has folded.
  TestServer server({.memory = {.device_state_bytes = 6 * bytes_ + bytes_ / 4, .snapshot_bytes = 9 * bytes_}});
  if (!server.server().backend().info().lazy_memory) GTEST_SKIP() << "several pools hold fewer than the budget says";
  const Caller caller(server);
  const auto feed_all = [&](const std::string& id) {
    ASSERT_TRUE(feed_.Create(caller, id).ok()) << id;
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(caller.Prefill(feed_.Prefill(id, kPrompt, layer)).ok());
    }
  };
  feed_all("owner");
  for (const char* key : {"a", "b", "c"}) {
    ASSERT_TRUE(Take(caller, "owner", key).ok());
    for (int layer = 0; layer < kLayers; ++layer) {
      ASSERT_TRUE(caller.Prefill(feed_.Prefill("owner", kPrompt, layer)).ok());
    }
  }
  ASSERT_TRUE(Begin(caller, "of-a", "a").ok());  // a use
  feed_all("x");
  EXPECT_EQ(Keys(caller), (KeyList{"a", "b", "c"})) << "all six have room";
  feed_all("y");
  EXPECT_EQ(Keys(caller), (KeyList{"a", "c"})) << "the least recently used one has given way";
  EXPECT_EQ(LostKeys(List(caller)), KeyList{"b"});
  feed_all("z");
  EXPECT_EQ(LostKeys(List(caller)), (KeyList{"b", "c"}));
  ASSERT_TRUE(caller.Delete("of-a").ok());
  ASSERT_TRUE(Take(caller, "owner", "d").ok()) << "there is room again";
  for (int layer = 0; layer < kLayers; ++layer) {
    ASSERT_TRUE(caller.Prefill(feed_.Prefill("owner", kPrompt, layer)).ok());
  }
  ASSERT_TRUE(Take(caller, "owner", "e").ok());
  EXPECT_EQ(Keys(caller), (KeyList{"d", "e"})) << "a snapshot makes room for a snapshot";
  EXPECT_TRUE(RefusedAs(caller.CreateOperator("huge", SmallOperator(40 * kLayers)), "STATE_BUDGET_EXHAUSTED"));
  EXPECT_EQ(Keys(caller), (KeyList{"d", "e"})) << "nothing gives way to what never fits";
}

TEST_F(Snapshots, RestInTheTiersAndComeBack) {
  for (const bool disk : {false, true}) {
    SCOPED_TRACE(disk ? "disk" : "host");
    GdnServerOptions options{.memory = {.device_state_bytes = 7 * bytes_ / 2, .snapshot_bytes = 100 * bytes_}};
    if (disk) {
      options.states.disk.directory = folder_.path();
    } else {
      options.memory.host_state_bytes = 100 * bytes_;
    }
    TestServer server(options), big;
    const Caller caller(server), plain(big);
    KeyList keys;
    for (int i = 0; i < 8; ++i) {
      const std::string id = "s" + std::to_string(i);
      for (const Caller& each : {caller, plain}) {
        Feed(each, id, i);
        ASSERT_TRUE(each.Prefill(feed_.Prefill(id, {7 * i, 20 + i}, 1)).ok());
      }
      ASSERT_TRUE(Take(caller, id, "k" + std::to_string(i)).ok()) << i;
      feed_.DecodeAll(caller, id, {kOwn, 20});
    }
    EXPECT_EQ(Named(caller, "k0").tier(), disk ? v1::STATE_TIER_DISK : v1::STATE_TIER_HOST);
    EXPECT_EQ(Named(caller, "k0").shared_bytes(), 0);
    EXPECT_EQ(Named(caller, "k0").has_durable_time(), disk);
    for (int i = 0; i < 8; ++i) {
      const std::string id = "s" + std::to_string(i), made = "m" + std::to_string(i);
      ASSERT_REPLY(const auto begun, Begin(caller, made, "k" + std::to_string(i)));
      EXPECT_EQ(caller.State(made), plain.State(id)) << i;
      EXPECT_EQ(feed_.DecodeAll(caller, made, {kOwn, 18}, 1), feed_.DecodeAll(plain, id, {kOwn, 18}, 1)) << i;
    }
    EXPECT_TRUE(List(caller).lost().empty());
  }
}

TEST_F(Snapshots, SurviveARestartIfTheyAreDurableAndElseTheMarkTells) {
  // A listed principal has one account, before the restart and after it.
  std::ofstream(folder_.path() + "/principals.json") << kPrincipals;
  const std::string states = folder_.path() + "/states";
  std::filesystem::create_directory(states);
  GdnServerOptions options{.memory = {.snapshot_bytes = 4 * bytes_},
                           .states = {.disk = {.directory = states}},
                           .principals = {.file = folder_.path() + "/principals.json"}};
  auto server = std::make_unique<TestServer>(options);
  auto caller = std::make_unique<Caller>(*server, "Bearer 1");
  const auto restart = [&] {
    server = nullptr;
    server = std::make_unique<TestServer>(options);
    caller = std::make_unique<Caller>(*server, "Bearer 1");
  };
  Feed(*caller, "owner", 3);
  ASSERT_TRUE(Take(*caller, "owner", "a").ok());
  const std::string state = caller->State("owner");
  feed_.DecodeAll(*caller, "owner", {kOwn, 3});
  ASSERT_REPLY(const auto taken, Take(*caller, "owner", "b"));
  const int64_t mark = taken.snapshot_loss_mark();
  ASSERT_TRUE(server->Drain());
  restart();
  EXPECT_EQ(Keys(*caller), (KeyList{"a", "b"}));
  EXPECT_TRUE(Named(*caller, "a").has_durable_time());
  EXPECT_EQ(Named(*caller, "a").layers(0).token_count(), kPrompt.count + 3);
  EXPECT_EQ(server->server().ledger().held(BytePool::kSnapshots), 2 * bytes_);
  auto list = List(*caller, mark);
  EXPECT_TRUE(list.lost_incomplete()) << "the mark is of another process";
  EXPECT_NE(list.snapshot_loss_mark(), mark);
  EXPECT_NE(list.snapshot_loss_mark(), 0);
  ASSERT_TRUE(Begin(*caller, "made", "a").ok());
  EXPECT_EQ(caller->State("made"), state);

  // A crash loses the one that is not durable.
  ASSERT_TRUE(Take(*caller, "made", "c").ok());
  const int64_t before = List(*caller).snapshot_loss_mark();
  restart();
  EXPECT_EQ(Keys(*caller), (KeyList{"a", "b"}));
  list = List(*caller, before);
  EXPECT_TRUE(list.lost_incomplete());
  EXPECT_NE(list.snapshot_loss_mark(), before);
  EXPECT_TRUE(RefusedAs(Begin(*caller, "late", "c"), "SNAPSHOT_NOT_FOUND"));

  // The oldest go first after a restart, and for good. What is evicted does not come back.
  feed_.Start(*caller, "fresh", kPrompt);
  for (const char* key : {"d", "e", "f"}) ASSERT_TRUE(Take(*caller, "fresh", key).ok());
  EXPECT_EQ(LostKeys(List(*caller)), KeyList{"a"});
  EXPECT_EQ(DeleteKey(*caller, "b"), "");
  ASSERT_TRUE(server->Drain());
  restart();
  EXPECT_EQ(Keys(*caller), (KeyList{"d", "e", "f"}));
  ASSERT_TRUE(Begin(*caller, "last", "d").ok());
  EXPECT_EQ(caller->State("last"), caller->State("fresh"));
}

TEST_F(Snapshots, WhoseOnlyStateIsDamagedAreLostAndSaySo) {
  GdnServerOptions options{.memory = {.device_state_bytes = 5 * bytes_ / 2, .snapshot_bytes = 2 * bytes_},
                           .states = {.disk = {.directory = folder_.path()}}};
  TestServer server(options);
  const Caller caller(server);
  Feed(caller, "owner", 3);
  ASSERT_REPLY(const auto taken, Take(caller, "owner", "k"));
  for (const char* id : {"x", "y", "z"}) Feed(caller, id);
  ASSERT_EQ(Named(caller, "k").tier(), v1::STATE_TIER_DISK);
  for (const std::string& file : FilesBelow(folder_, "s-+k/state.safetensors")) {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(-9, std::ios::end);
    bytes.write("damaged!!", 9);
  }
  EXPECT_TRUE(RefusedAs(Begin(caller, "made", "k"), "SNAPSHOT_NOT_FOUND", {{"lost", "damaged"}}));
  const auto list = List(caller);
  EXPECT_TRUE(Keys(list).empty());
  ASSERT_EQ(LostKeys(list), KeyList{"k"});
  EXPECT_EQ(list.lost(0).cause(), v1::SNAPSHOT_LOSS_CAUSE_DAMAGED);
  EXPECT_EQ(list.snapshot_loss_mark(), taken.snapshot_loss_mark() + 1);
  EXPECT_EQ(caller.Get("made").reason(), "SESSION_NOT_FOUND");
}

TEST_F(Snapshots, AreSafeWithManyCallersUnderASmallBudget) {
  TestServer server(
      {.memory = {.device_state_bytes = 12 * bytes_, .host_state_bytes = 100 * bytes_, .snapshot_bytes = 5 * bytes_}});
  const Caller caller(server);
  constexpr int kThreads = 4, kRounds = 30;
  Feed(caller, "fed");
  std::map<int64_t, std::string> states;  // by token count
  for (int64_t i = 0; i <= kRounds; ++i) {
    states[kPrompt.count + i] = caller.State("fed");
    feed_.DecodeAll(caller, "fed", {kOwn + i, 1});
  }
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      const std::string id = "s" + std::to_string(t);
      Feed(caller, id);
      for (int i = 0; i < kRounds; ++i) {
        const std::string key = id + "." + std::to_string(i), made = key + "m";
        const auto taken = Take(caller, id, key);
        EXPECT_TRUE(taken.ok()) << taken.status.error_message();
        feed_.DecodeAll(caller, id, {kOwn + i, 1});
        const auto begun = Begin(caller, made, key);
        if (begun.ok()) {
          EXPECT_EQ(caller.State(made), states.at(kPrompt.count + i));
          EXPECT_TRUE(caller.Delete(made).ok());
        } else {
          EXPECT_TRUE(RefusedAs(begun, "SNAPSHOT_NOT_FOUND"));
        }
        if (i % 7 == 3) DeleteKey(caller, key);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(server.server().ledger().held(BytePool::kSnapshots), 5 * bytes_);
  const auto list = List(caller);
  EXPECT_EQ(static_cast<int64_t>(list.snapshots_size()) * bytes_, server.server().ledger().held(BytePool::kSnapshots));
  for (const std::string& key : Keys(list)) EXPECT_EQ(DeleteKey(caller, key), "");
  const auto sessions = caller.List(100);
  for (const v1::Session& session : sessions.reply.sessions()) {
    EXPECT_TRUE(caller.Delete(session.name().substr(std::string("sessions/").size())).ok());
  }
  EXPECT_EQ(Used(caller), 0);
}

}  // namespace
}  // namespace gdn::snapshots_test
