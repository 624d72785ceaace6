// A call in which each allocation, or each operation of a launch, fails in turn; afterwards the sessions and all that
// they answer later are those of a twin that nothing happened to, or a session says that it is lost.
//
// Thread safety: for one thread; one test at a time counts. Ownership: a fixture owns its servers.
//
//   class Mine : public FailureInTurn {};
//   TEST_P(Mine, Works) { FailEach({"decode", prepare, call, {{"a", 8, &feed}}}); Report("decodes"); }
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu_on_host/acquisitions.h"
#include "tests/gpu_on_host/host_streams.h"
#include "tests/integration/service_helpers.h"
#include "tests/integration/token_feed.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_folder.h"

namespace gdn {

// A session, and the token of its feed that comes next once the scenario's call is done.
struct Examined {
  std::string id;
  int64_t next = 0;
  const TokenFeed* feed = nullptr;
};

struct Result {
  grpc::Status status;
  std::string bytes = {};  // that the call answered with
};

// What leads to a call, the call, and whose sessions it is about.
struct Scenario {
  std::string name;
  std::function<void(const Caller&)> prepare;
  std::function<Result(const Caller&)> call;
  std::vector<Examined> sessions;
};

inline constexpr int64_t kLater = 18;  // tokens: over the next fold, wherever the log is

inline Result ResultOf(const Outcome<v1::DecodeResponse>& outcome) {
  return {outcome.status, outcome.reply.output().data()};
}
inline Result ResultOf(const Outcome<v1::PrefillResponse>& outcome) {
  return {outcome.status, outcome.reply.output().data()};
}
template <typename Reply>
Result ResultOf(const Outcome<Reply>& outcome) {
  return {outcome.status};
}

inline bool SaysLost(const grpc::Status& status) {
  const std::string reason = ErrorInfoOf(status).reason();
  return reason == "STATE_LOST" || reason == "STATE_ROLLED_BACK";
}

// What a session is once a call is over, and what it answers later.
inline std::vector<std::string> Look(const Caller& caller, const std::vector<Examined>& sessions) {
  std::vector<std::string> seen;
  for (const Examined& session : sessions) {
    seen.push_back(caller.State(session.id));
    seen.push_back(session.feed->DecodeAll(caller, session.id, {session.next, kLater}));
    seen.push_back(caller.State(session.id));
  }
  return seen;
}

// What fails: each is counted from Fail on, and Stop tells how many there were.
struct Failures {
  std::function<void(int64_t first, bool all_after)> fail;
  std::function<int64_t()> stop;
};

// A server in which nothing has been acquired yet but at its making.
class World {
 public:
  // With a checkpoint folder, where sessions are made durable before the call.
  World(const std::string& backend, bool operations, const TempFolder* folder) {
    Acquisitions::ForgetCode();
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.host_state_bytes = int64_t{64} << 20;
    if (folder != nullptr) options.disk_dir = folder->path();
    auto made = std::make_unique<FailingBackend>(*MakeBackend(backend));
    FailingBackend* const failing = made.get();
    server_ = std::make_unique<TestServer>(std::move(options), std::move(made));
    caller_ = std::make_unique<Caller>(*server_);
    if (operations) {
      failures_ = {.fail =
                       [failing](int64_t first, bool all_after) {
                         failing->Fail({first, all_after});
                       },
                   .stop = [failing] { return failing->Stop(); }};
    } else {
      failures_ = {.fail =
                       [](int64_t first, bool all_after) {
                         Acquisitions::Fail({first, all_after});
                       },
                   .stop = [] { return Acquisitions::Stop(); }};
    }
  }

  const Caller& caller() const { return *caller_; }
  TestServer& server() { return *server_; }
  const Failures& failures() const { return failures_; }

 private:
  std::unique_ptr<TestServer> server_;
  std::unique_ptr<Caller> caller_;
  Failures failures_;
};

class FailureInTurn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { gpu::HostStreams::Configure({}); }
  ~FailureInTurn() override { gpu::HostStreams::ConfigureFromEnvironment(); }

  // Allocations, alone and with all after them, and then operations.
  void FailEach(const Scenario& scenario) {
    for (const bool all_after : {false, true}) {
      if (!HasFatalFailure()) FailEach(scenario, /*operations=*/false, /*durable=*/false, all_after);
    }
    if (!HasFatalFailure()) FailEach(scenario, /*operations=*/true, /*durable=*/true, /*all_after=*/false);
  }

  // Fails each in turn. Where durable, sessions have a checkpoint from before the call.
  void FailEach(const Scenario& scenario, bool operations, bool durable, bool all_after) {
    SCOPED_TRACE(scenario.name + (operations ? ", operations" : ", acquisitions") + (durable ? ", durable" : ""));
    Result expected;
    std::vector<std::string> before, twin;
    {
      World world(GetParam(), operations, nullptr);
      scenario.prepare(world.caller());
      for (const Examined& session : scenario.sessions) before.push_back(StateOrNone(world.caller(), session.id));
      expected = scenario.call(world.caller());
      ASSERT_TRUE(expected.status.ok()) << expected.status.error_message();
      twin = Look(world.caller(), scenario.sessions);
    }
    for (int64_t first = 0;; ++first) {
      SCOPED_TRACE(testing::Message() << "number " << first << (all_after ? " and all after it" : ""));
      const TempFolder folder;
      World world(GetParam(), operations, durable ? &folder : nullptr);
      const Caller& caller = world.caller();
      scenario.prepare(caller);
      for (const Examined& session : scenario.sessions) {
        if (durable && caller.Get(session.id).ok()) ASSERT_TRUE(caller.Checkpoint(session.id).ok());
      }
      world.failures().fail(first, all_after);
      Result result = scenario.call(caller);
      const bool failed = world.failures().stop() > first;
      if (!failed) {
        ASSERT_TRUE(result.status.ok()) << result.status.error_message();
        break;
      }
      ++points_;
      if (!result.status.ok()) {
        ++refused_;
        EXPECT_TRUE(result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED || SaysLost(result.status))
            << result.status.error_message();
        Recover(world, scenario, durable, before);
        result = scenario.call(caller);
      }
      if (ErrorInfoOf(result.status).reason() == "SESSION_NOT_FOUND") continue;  // it was lost, and deleted
      ASSERT_TRUE(result.status.ok()) << "sent again: " << result.status.error_message();
      const std::vector<std::string> seen = Look(caller, scenario.sessions);
      if (result.bytes != expected.bytes || seen != twin) {
        ++wrong_;
        ADD_FAILURE() << "answers, states or later outputs are not the twin's";
      }
    }
  }

  static std::string StateOrNone(const Caller& caller, const std::string& id) {
    return caller.Get(id).ok() ? caller.State(id) : "";
  }

  // Sessions that say that they are lost: they are refused everything else, and are brought back from their durable
  // copy.
  void Recover(World& world, const Scenario& scenario, bool durable, const std::vector<std::string>& before) {
    const Caller& caller = world.caller();
    for (size_t i = 0; i < scenario.sessions.size(); ++i) {
      const Examined& session = scenario.sessions[i];
      const auto got = caller.Get(session.id);
      if (!got.ok()) continue;
      const auto exported = caller.Export(session.id);
      if (exported.ok()) continue;
      ++lost_;
      const std::string reason = durable ? "STATE_ROLLED_BACK" : "STATE_LOST";
      const std::map<std::string, std::string> about = {{"session", "sessions/" + session.id}, {"layer", "0"}};
      EXPECT_TRUE(RefusedAs(exported, reason, about));
      EXPECT_TRUE(RefusedAs(caller.Decode(session.feed->Decode({session.id}, TokenRange{session.next, 1})), reason));
      EXPECT_TRUE(RefusedAs(caller.Prefill(session.feed->Prefill(session.id, {session.next, 2})), reason));
      EXPECT_TRUE(RefusedAs(caller.Accept(session.id, 0), reason));
      EXPECT_TRUE(RefusedAs(caller.Fork(session.id, {"child"}), reason));
      EXPECT_TRUE(RefusedAs(caller.Evict(session.id), reason));
      if (!durable) {
        EXPECT_TRUE(RefusedAs(caller.Restore(session.id), reason)) << "there is nothing to restore";
        EXPECT_TRUE(caller.Delete(session.id).ok());
        EXPECT_TRUE(RefusedAs(caller.Get(session.id), "SESSION_NOT_FOUND"));
        continue;
      }
      EXPECT_TRUE(RefusedAs(caller.Checkpoint(session.id), reason)) << "it would write over the good copy";
      EXPECT_TRUE(caller.Checkpoints(session.id).ok());
      ASSERT_REPLY(const v1::Session restored, caller.Restore(session.id));
      EXPECT_EQ(restored.epoch(), got.reply.epoch() + 1);
      EXPECT_EQ(caller.State(session.id), before[i]);
    }
  }

  void Report(const char* what) const {
    std::printf("%s on %s: %lld points failed in turn, %lld calls refused, %lld sessions lost, %lld calls wrong\n",
                what, GetParam().c_str(), static_cast<long long>(points_), static_cast<long long>(refused_),
                static_cast<long long>(lost_), static_cast<long long>(wrong_));
  }

  int64_t points_ = 0, refused_ = 0, lost_ = 0, wrong_ = 0;
};

}  // namespace gdn
