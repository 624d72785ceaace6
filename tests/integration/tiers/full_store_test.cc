// A store that is full at each of its writes in turn: space, inodes and descriptors of a disk, memory of a Redis. No
// call says that it happened if it did not; what was acknowledged is there afterwards, also in the next server; and
// once there is room the server goes on by itself.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/integration/support/full_disk.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn::full_store_test {
namespace {

constexpr TokenRange kPrompt = {0, 3};
constexpr int64_t kMostTokens = 3;  // that a session decodes

// A store that can be full. Its calls are counted from Fill on.
class Store {
 public:
  virtual ~Store() = default;
  virtual GdnServerOptions Options() const = 0;
  virtual std::string name() const = 0;
  virtual v1::StateTier tier() const = 0;
  // Full from its `after`th call on, or for that one only.
  virtual void Fill(int64_t after, bool once) = 0;
  // Called before each of the test's calls; a Redis is full from one of these on.
  virtual void NextCall() {}
  // There is room again. Whether it was full for any call.
  virtual bool Free() = 0;
};

class DiskStore final : public Store {
 public:
  explicit DiskStore(FullDisk::Lacks lacks) : lacks_(lacks) {}
  GdnServerOptions Options() const override {
    return {.memory = {.host_state_bytes = 8 << 20}, .states = {.disk = {.directory = folder_.path()}}};
  }
  std::string name() const override { return "disk"; }
  v1::StateTier tier() const override { return v1::STATE_TIER_DISK; }
  void Fill(int64_t after, bool once) override {
    after_ = after;
    full_ = std::make_unique<FullDisk>(
        FullDisk::Options{.lacks = lacks_, .folder = folder_.path() + "/", .after = after, .once = once});
  }
  bool Free() override {
    full_->Free();
    return full_->calls() > after_;
  }

 private:
  const FullDisk::Lacks lacks_;
  const TempFolder folder_;
  int64_t after_ = 0;
  std::unique_ptr<FullDisk> full_;
};

class RedisStore final : public Store {
 public:
  RedisStore() { redis_.Start(); }
  GdnServerOptions Options() const override {
    return {.memory = {.host_state_bytes = 8 << 20}, .states = {.redis = {.endpoint = redis_.endpoint()}}};
  }
  std::string name() const override { return "redis"; }
  v1::StateTier tier() const override { return v1::STATE_TIER_REDIS; }
  void Fill(int64_t after, bool once) override {
    left_ = after;
    once_ = once;
    NextCall();
  }
  void NextCall() override {
    if (once_ && left_ == -1) redis_.Command({"CONFIG", "SET", "maxmemory", "0"});
    if (left_-- == 0) redis_.Command({"CONFIG", "SET", "maxmemory", "1"});
  }
  bool Free() override {
    redis_.Command({"CONFIG", "SET", "maxmemory", "0"});
    return left_ < 0;
  }

 private:
  RedisServer redis_;
  int64_t left_ = 0;
  bool once_ = false;
};

// A session as its client knows it.
struct Known {
  int64_t tokens = 0;   // decoded behind the prompt
  int64_t durable = 0;  // of these, acknowledged as durable
  bool deleted = false;
};

class FullStore : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "memory" && !RedisServer::Installed()) GTEST_SKIP() << "redis-server is not there";
    feed_.Start(steady_, "steady", kPrompt);
    for (int64_t token = 0; token <= kMostTokens; ++token) {
      states_.push_back(steady_.State("steady"));
      outputs_.push_back(feed_.DecodeAll(steady_, "steady", {kPrompt.count + token, 1}));
    }
  }
  ~FullStore() override { std::printf("%s: full at %d calls in turn, %d refused\n", GetParam(), points_, refused_); }

  std::unique_ptr<Store> Make() const {
    const std::string what = GetParam();
    if (what == "memory") return std::make_unique<RedisStore>();
    return std::make_unique<DiskStore>(what == "space"    ? FullDisk::Lacks::kSpace
                                       : what == "inodes" ? FullDisk::Lacks::kInodes
                                                          : FullDisk::Lacks::kDescriptors);
  }

  // Refused for want of room and for nothing else.
  void ExpectFull(const grpc::Status& status, const std::string& call) {
    ++refused_;
    const std::string reason = ErrorInfoOf(status).reason();
    EXPECT_TRUE(reason == "TIER_UNAVAILABLE" || reason == "STATE_BUDGET_EXHAUSTED")
        << call << ": " << status.error_message();
  }
  template <typename Reply>
  bool Acknowledged(const Outcome<Reply>& outcome, const std::string& call) {
    if (!outcome.ok()) ExpectFull(outcome.status, call);
    return outcome.ok();
  }

  // One token more, in the bits of a server that had room; a refused one is sent again as it was.
  bool Step(const Caller& caller, const std::string& id) {
    Known& known = known_[id];
    v1::DecodeRequest request = feed_.Decode({id}, TokenRange{kPrompt.count + known.tokens, 1});
    request.set_request_id(id + std::to_string(known.tokens));
    request.add_expected_token_counts(kPrompt.count + known.tokens);
    const auto reply = caller.Decode(request);
    if (!Acknowledged(reply, "Decode of " + id)) return false;
    EXPECT_EQ(reply.reply.output().data(), outputs_[static_cast<size_t>(known.tokens)]) << id;
    ++known.tokens;
    return true;
  }
  bool Checkpoint(const Caller& caller, const std::string& id, const std::string& name = "") {
    if (!Acknowledged(caller.Checkpoint(id, name), "CheckpointSession of " + id)) return false;
    if (name.empty()) known_[id].durable = known_[id].tokens;
    return true;
  }
  void Prepare(const Store& store, const Caller& caller) {
    known_ = {{"steps", {}}, {"rests", {}}, {"named", {}}, {"gone", {}}};
    for (const auto& [id, known] : known_) {
      feed_.Start(caller, id, kPrompt);
      ASSERT_TRUE(caller.Checkpoint(id).ok());
    }
    ASSERT_TRUE(caller.Evict("rests", store.tier()).ok());
    named_ = false;
  }
  // A call of each kind that writes, and one that needs no store.
  void Use(Store& store, const Caller& caller) {
    const std::vector<std::function<void()>> calls = {
        [&] { EXPECT_TRUE(Step(caller, "steps")) << "a step needs no store"; },
        [&] { Checkpoint(caller, "steps"); },
        [&] { Step(caller, "rests"); },
        [&] { Acknowledged(caller.Evict("rests", store.tier()), "EvictSession"); },
        [&] { named_ = Checkpoint(caller, "named", "two"); },
        [&] { known_["gone"].deleted = Acknowledged(caller.Delete("gone"), "DeleteSession"); },
        [&] { EXPECT_TRUE(Step(caller, "steps")); }};
    for (const auto& call : calls) {
      call();
      store.NextCall();
    }
  }

  // Everything that was acknowledged, and no state that never was.
  void ExpectKept(const Caller& caller, bool orderly) {
    for (const auto& [id, known] : known_) {
      SCOPED_TRACE(id);
      const auto got = caller.Get(id);
      if (known.deleted) {
        EXPECT_EQ(got.reason(), "SESSION_NOT_FOUND");
        continue;
      }
      if (id == "gone" && got.reason() == "SESSION_NOT_FOUND") continue;  // its delete may have happened
      ASSERT_TRUE(got.ok()) << got.status.error_message();
      const int64_t tokens = got.reply.layers(0).token_count() - kPrompt.count;
      EXPECT_GE(tokens, orderly ? known.tokens : known.durable);
      ASSERT_LE(tokens, known.tokens);
      if (tokens < known.tokens) {
        EXPECT_GT(got.reply.epoch(), 1) << "a client must see that tokens are gone";
      }
      EXPECT_EQ(caller.State(id), states_[static_cast<size_t>(tokens)]);
    }
    if (!named_) return;
    const auto restored = caller.Restore("named", "two");
    ASSERT_TRUE(restored.ok()) << restored.status.error_message();
    EXPECT_EQ(caller.State("named"), states_[0]);
  }

  // `body` with the store full at each of its calls in turn, until none of them is.
  void ForEachCall(bool once, const std::function<void(Store&, const std::function<void()>& fill)>& body) {
    for (int64_t after = 0;; ++after) {
      SCOPED_TRACE(testing::Message() << "full " << (once ? "at call " : "from call ") << after);
      const std::unique_ptr<Store> store = Make();
      body(*store, [&, after] { store->Fill(after, once); });
      if (store->Free()) {
        ++points_;
      } else {
        break;
      }
      if (HasFatalFailure()) return;
    }
  }

  const TokenFeed feed_ = TokenFeed::Operator(1);
  TestServer steady_server_;
  const Caller steady_{steady_server_};
  std::vector<std::string> states_, outputs_;  // by tokens behind the prompt
  std::map<std::string, Known> known_;
  bool named_ = false;  // whether the checkpoint "two" of "named" was acknowledged
  int points_ = 0, refused_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Of, FullStore, testing::Values("space", "inodes", "descriptors", "memory"),
                         [](const auto& what) { return std::string(what.param); });

TEST_P(FullStore, GoesOnByItselfOnceThereIsRoom) {
  ForEachCall(/*once=*/false, [&](Store& store, const auto& fill) {
    TestServer server(store.Options());
    const Caller caller(server);
    Prepare(store, caller);
    fill();
    Use(store, caller);
    store.Free();
    const auto succeeds = [&](const std::function<bool()>& call) { return WaitUntil(call, "room"); };
    for (const std::string id : {"steps", "rests", "named"}) {
      EXPECT_TRUE(succeeds([&] { return Step(caller, id); })) << id;
      EXPECT_TRUE(succeeds([&] { return Checkpoint(caller, id); })) << id;
    }
    EXPECT_TRUE(succeeds([&] { return TierNamed(caller, store.name()).problem().empty(); }));
    ExpectKept(caller, /*orderly=*/true);
  });
}

TEST_P(FullStore, LosesNothingThatWasAcknowledgedWithTheServer) {
  // Orderly ends, killed servers, and a store that is full for one call only.
  for (const auto& [drained, once] : {std::pair(true, false), std::pair(false, false), std::pair(false, true)}) {
    ForEachCall(once, [&, drained = drained](Store& store, const auto& fill) {
      bool orderly = false;
      {
        TestServer server(store.Options());
        const Caller caller(server);
        Prepare(store, caller);
        fill();
        Use(store, caller);
        if (drained) orderly = server.Drain();
      }
      store.Free();
      TestServer next(store.Options());
      ExpectKept(Caller(next), orderly);
    });
  }
}

TEST_P(FullStore, IsNoHarmToAStart) {
  ForEachCall(/*once=*/false, [&](Store& store, const auto& fill) {
    {
      TestServer server(store.Options());
      const Caller caller(server);
      Prepare(store, caller);
      EXPECT_TRUE(server.Drain());
    }
    fill();
    GdnServerOptions options = store.Options();
    options.memory.device_state_bytes = 64 << 20;
    if (auto server = GdnServer::Make(MakeTestBackend(/*threads=*/1), options); server.ok()) {
      (*server)->Start().IgnoreError();
    }
    store.Free();
    TestServer next(store.Options());
    const Caller caller(next);
    ExpectKept(caller, /*orderly=*/true);
    EXPECT_TRUE(Step(caller, "steps"));
    EXPECT_TRUE(Checkpoint(caller, "steps"));
  });
}

}  // namespace
}  // namespace gdn::full_store_test
