// Runs a call once for each allocation, or each operation of a launch, and fails that one. Afterwards the sessions and
// their later outputs must equal those of an undisturbed twin, or the session must report that it is lost.
//
// Thread safety: for one thread; only one test at a time may use it. Ownership: a fixture owns its servers.
//
//   class Mine : public FailureInTurn {};
//   TEST_P(Mine, Works) { FailEach({"decode", prepare, call, {{"a", 8, &feed}}}); Report("decodes"); }
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/gpu/acquisitions/acquisitions.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/failing_backend.h"
#include "tests/support/temp_folder.h"

namespace gdn {

// A session, and its next token in the feed after the scenario's call.
struct Examined {
  std::string id;
  int64_t next = 0;
  const TokenFeed* feed = nullptr;
};

struct Result {
  grpc::Status status;
  std::string bytes = {};  // bytes of the reply
};

// A call, the calls that prepare it, and the sessions that it concerns.
struct Scenario {
  std::string name;
  std::function<void(const Caller&)> prepare;
  std::function<Result(const Caller&)> call;
  std::vector<Examined> sessions;
  std::function<void(const Caller&)> when_refused = nullptr;  // checks more after a refused call
  int64_t device_state_bytes = 0;                             // 0: much more than the sessions need
};

inline constexpr int64_t kLater = 18;  // tokens to decode afterwards: enough for a fold at any log length

inline Result ResultOf(const Outcome<v1::DecodeResponse>& outcome) {
  return {outcome.status, outcome.reply.output().data()};
}
inline Result ResultOf(const Outcome<v1::PrefillResponse>& outcome) {
  return {outcome.status, outcome.reply.output().data()};
}
inline Result ResultOf(const Outcome<v1::StepResponse>& outcome) {
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

// Returns the sessions' states after a call, and their later outputs and states.
inline std::vector<std::string> Look(const Caller& caller, const std::vector<Examined>& sessions) {
  std::vector<std::string> seen;
  for (const Examined& session : sessions) {
    seen.push_back(caller.State(session.id));
    seen.push_back(session.feed->DecodeAll(caller, session.id, {session.next, kLater}));
    seen.push_back(caller.State(session.id));
  }
  return seen;
}

// Failure of one acquisition (such as an allocation) or operation of a launch, or (..From) of one and all later ones.
enum class Failures { kAcquisition, kAcquisitionsFrom, kOperation, kOperationsFrom };
inline constexpr const char* kNames[] = {"acquisition ", "acquisitions from ", "operation ", "operations from "};

// A new server, a backend that can fail, and a caller.
class World {
 public:
  // `folder`: disk folder for checkpoints; nullptr: no durable tier. `device_state_bytes`: 0: the default.
  World(const std::string& backend, const TempFolder* folder, int64_t device_state_bytes = 0) {
    Acquisitions::ForgetCode();
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.memory.host_state_bytes = int64_t{64} << 20;
    options.memory.device_state_bytes = device_state_bytes > 0 ? device_state_bytes : int64_t{32} << 20;
    if (folder != nullptr) options.states.disk.directory = folder->path();
    auto made = std::make_unique<FailingBackend>(*MakeBackend(backend));
    device_ = made.get();
    server_ = std::make_unique<TestServer>(std::move(options), std::move(made));
    caller_ = std::make_unique<Caller>(*server_);
  }

  const Caller& caller() const { return *caller_; }
  // Counts acquisitions and operations from now on. `failures` says which fail, beginning with number `first`.
  void Fail(Failures failures, int64_t first = std::numeric_limits<int64_t>::max()) {
    constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
    const bool all_after = failures == Failures::kAcquisitionsFrom || failures == Failures::kOperationsFrom;
    const bool operations = failures == Failures::kOperation || failures == Failures::kOperationsFrom;
    device_->Fail({operations ? first : kNone, all_after});
    Acquisitions::Fail({operations ? kNone : first, all_after});
  }
  // Ends the failures. Returns the numbers of acquisitions and operations since Fail.
  struct Counts {
    int64_t acquisitions = 0;
    int64_t operations = 0;
    int64_t of(Failures failures) const {
      return failures == Failures::kOperation || failures == Failures::kOperationsFrom ? operations : acquisitions;
    }
  };
  Counts Stop() { return {.acquisitions = Acquisitions::Stop(), .operations = device_->Stop()}; }

 private:
  std::unique_ptr<TestServer> server_;
  FailingBackend* device_ = nullptr;
  std::unique_ptr<Caller> caller_;
};

class FailureInTurn : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto backend = MakeBackend(GetParam()); !backend.ok()) GTEST_SKIP() << backend.status();
  }

  // Fails each acquisition, alone and with all later ones; then each operation, with durable sessions.
  void FailEach(const Scenario& scenario) {
    FailEach(scenario, {Failures::kAcquisition, Failures::kAcquisitionsFrom});
    if (!HasFatalFailure()) FailEach(scenario, {Failures::kOperation}, /*durable=*/true);
  }

  // Tests all points from here on: a test that expects something of a certain point must not miss it.
  void TestEveryPoint() { stride_ = 1; }

  // Fails each point of these kinds, one at a time. `durable`: sessions have a checkpoint from before the call.
  void FailEach(const Scenario& scenario, const std::vector<Failures>& kinds, bool durable = false) {
    SCOPED_TRACE(scenario.name + (durable ? ", durable" : ""));
    if (IsLeftOut(scenario)) return;
    const Twin& twin = TwinOf(scenario);
    if (HasFatalFailure()) return;
    for (const Failures failures : kinds) {
      for (int64_t first = 0; first < twin.counts.of(failures); ++first) {
        if (number_++ % stride_ != 0) continue;
        SCOPED_TRACE(testing::Message() << kNames[static_cast<int>(failures)] << first);
        FailOne(scenario, twin, failures, first, durable);
        if (HasFatalFailure()) return;
      }
    }
  }

  static std::string StateOrNone(const Caller& caller, const std::string& id) {
    return caller.Get(id).ok() ? caller.State(id) : "";
  }

  // Checks that lost sessions refuse all other calls, and restores them from their durable copies. Without copies, they
  // are deleted.
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
      v1::StepRequest step = session.feed->Step({{.id = session.id, .range = {session.next, 1}}});
      EXPECT_TRUE(RefusedAs(caller.Step(step), reason));
      step.mutable_rows(0)->mutable_accept_before();
      EXPECT_TRUE(RefusedAs(caller.Step(step), reason));
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
    const auto number = [](int64_t count) { return static_cast<long long>(count); };
    std::printf("%s on %s: %lld of %lld points failed in turn, %lld refused, %lld sessions lost, %lld calls wrong\n",
                what, GetParam().c_str(), number(points_), number(number_), number(refused_), number(lost_),
                number(wrong_));
  }

  int64_t points_ = 0, refused_ = 0, lost_ = 0, wrong_ = 0;

 private:
  // The undisturbed run: the call's reply, its sessions before and after the call, and the number of points to fail.
  struct Twin {
    std::string of;
    Result expected;
    std::vector<std::string> before, after;
    World::Counts counts;
  };

  // Tests only every Stride()-th point, to save time. GDN_FAILURE_STRIDE sets it; 1: all points.
  static int64_t Stride() {
    static const int64_t stride = [] {
      const char* const text = std::getenv("GDN_FAILURE_STRIDE");
      return text == nullptr ? int64_t{5} : std::max<int64_t>(1, std::atoll(text));
    }();
    return stride;
  }

  // True if the scenario is skipped: on the executor, which is slow, only every stride_-th scenario runs.
  bool IsLeftOut(const Scenario& scenario) {
    if (scenario.name != scenario_) ++scenarios_;
    scenario_ = scenario.name;
    return GetParam() != "cpu" && (scenarios_ - 1) % stride_ != 0;
  }

  // Checks that a refused call has left each session that is not lost as it was, or, for the rows that it applied, as
  // the call leaves it.
  void ExpectBeforeOrAfter(const Caller& caller, const Scenario& scenario, const Twin& twin) const {
    constexpr size_t kSeen = 3;  // entries that Look returns for a session; the first is the state after the call
    for (size_t i = 0; i < scenario.sessions.size(); ++i) {
      const std::string& id = scenario.sessions[i].id;
      if (!caller.Get(id).ok() || !caller.Export(id).ok()) continue;
      const std::string state = caller.State(id);
      EXPECT_TRUE(state == twin.before[i] || state == twin.after[kSeen * i]) << id << " is neither before nor after";
    }
  }

  const Twin& TwinOf(const Scenario& scenario) {
    if (twin_.of == scenario.name) return twin_;
    twin_ = {};
    twin_.of = scenario.name;
    {  // in a server of its own, because its exports leave memory that the call would use again
      const World world(GetParam(), nullptr, scenario.device_state_bytes);
      scenario.prepare(world.caller());
      for (const Examined& session : scenario.sessions) twin_.before.push_back(StateOrNone(world.caller(), session.id));
    }
    World world(GetParam(), nullptr, scenario.device_state_bytes);
    const Caller& caller = world.caller();
    scenario.prepare(caller);
    world.Fail(Failures::kAcquisition);
    twin_.expected = scenario.call(caller);
    twin_.counts = world.Stop();
    [&] { ASSERT_TRUE(twin_.expected.status.ok()) << twin_.expected.status.error_message(); }();
    if (!HasFatalFailure()) twin_.after = Look(caller, scenario.sessions);
    return twin_;
  }

  void FailOne(const Scenario& scenario, const Twin& twin, Failures failures, int64_t first, bool durable) {
    const TempFolder folder;
    World world(GetParam(), durable ? &folder : nullptr, scenario.device_state_bytes);
    const Caller& caller = world.caller();
    scenario.prepare(caller);
    for (const Examined& session : scenario.sessions) {
      if (!durable || !caller.Get(session.id).ok()) continue;
      ASSERT_TRUE(caller.Checkpoint(session.id).ok());
    }
    world.Fail(failures, first);
    Result result = scenario.call(caller);
    if (world.Stop().of(failures) > first) {
      ++points_;
    } else {  // a durable session's call may ask for less
      ASSERT_TRUE(result.status.ok()) << result.status.error_message();
    }
    if (!result.status.ok()) {
      ++refused_;
      EXPECT_TRUE(result.status.error_code() == grpc::StatusCode::RESOURCE_EXHAUSTED || SaysLost(result.status))
          << result.status.error_message();
      ExpectBeforeOrAfter(caller, scenario, twin);
      if (scenario.when_refused) scenario.when_refused(caller);
      Recover(world, scenario, durable, twin.before);
      result = scenario.call(caller);
    }
    if (ErrorInfoOf(result.status).reason() == "SESSION_NOT_FOUND") return;  // it was lost, and deleted
    ASSERT_TRUE(result.status.ok()) << "sent again: " << result.status.error_message();
    if (result.bytes != twin.expected.bytes || Look(caller, scenario.sessions) != twin.after) {
      ++wrong_;
      ADD_FAILURE() << "answers, states or later outputs are not the twin's";
    }
  }

  int64_t stride_ = Stride();
  int64_t number_ = 0;  // points of all scenarios so far
  int64_t scenarios_ = 0;
  std::string scenario_;
  Twin twin_;
};

}  // namespace gdn
