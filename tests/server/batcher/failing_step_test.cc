// Each allocation of a step, and each operation of its launch, fails in turn: what sessions answer later is what a twin
// answers that nothing happened to, or a session says that it is lost.
#include <gtest/gtest.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/task/arrivals.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "kernels/gpu/acquisitions/acquisitions.h"
#include "server/batcher/accept_execution.h"
#include "server/batcher/batcher.h"
#include "server/session/session_lease.h"
#include "tests/server/batcher/engine_flows.h"
#include "tests/server/session/session_test_support.h"
#include "tests/support/delta_rule_problem.h"
#include "tests/support/failing_backend.h"
#include "tests/support/test_backend.h"

namespace gdn::failing_step_test {
namespace {

constexpr int64_t kTokens = 64;
constexpr int64_t kLater = 20;

Task<absl::Status> AllOf(Arrivals& open) { co_return co_await open.All(); }

// An engine with sessions of one operator, all fed from one sequence of tokens.
struct Engine {
  explicit Engine(const std::string& name)
      : backend(*MakeBackend(name)), store(backend, {.budget_bytes = int64_t{8} << 20, .max_draft = 8}), ledger({}) {}

  std::shared_ptr<Session> Make(const std::string& id, int64_t decoded) {
    SessionSpec spec;
    spec.dims = inputs.dims;
    spec.layers = {0};
    auto claims = store.Reserve(spec.dims, 1).value();
    auto session =
        std::make_shared<Session>(SessionInit{.id = id, .spec = spec, .affinity = id}, std::move(claims), &environment);
    for (int64_t token = 0; token < decoded; ++token) EXPECT_TRUE(Decode({{session, token, 1}}).ok());
    return session;
  }
  std::shared_ptr<Session> Fork(const std::shared_ptr<Session>& parent, const std::string& id) {
    SessionLease lease = parent->TryLock();
    const SessionSpec& spec = parent->spec();
    auto claims = store.ReserveIn(lease.pool(), 1).value();
    auto own = store.ReserveIn(lease.pool(), lease.claims_to_share()).value();
    return lease.Fork({.id = id, .spec = spec, .affinity = id}, std::move(claims), std::move(own));
  }

  struct Row {
    std::shared_ptr<Session> session;
    int64_t first = 0;
    int32_t count = 1;
  };
  // The first row's error; outputs go to `out`.
  absl::Status Decode(const std::vector<Row>& rows, bool draft = false, std::vector<int32_t> parents = {}) {
    auto job = std::make_shared<StepJob>();
    const LayerDims& dims = inputs.dims;
    job->shape.kind = InputKind::kDeltaRule;
    job->draft = draft;
    job->tree = !parents.empty();
    job->shape.delta_rule.scale = 0.5f;
    job->shape.field_count = 5;
    const std::vector<std::pair<const std::vector<float>*, int64_t>> fields = {{&inputs.q, dims.key_features()},
                                                                               {&inputs.k, dims.key_features()},
                                                                               {&inputs.v, dims.value_features()},
                                                                               {&inputs.g, dims.value_heads},
                                                                               {&inputs.beta, dims.value_heads}};
    for (size_t f = 0; f < fields.size(); ++f)
      job->shape.fields[f] = {.dtype = DType::kF32, .features = fields[f].second};
    job->shape.output_features = dims.value_features();
    std::vector<std::vector<float>> outputs;
    for (const Row& row : rows) {
      StepRow& step = job->rows.emplace_back();
      step.lease = AdmitStep(row.session);
      if (!step.lease.valid()) return row.session->CheckAlive();
      step.tokens = row.count;
      step.parents = parents;
      for (size_t f = 0; f < fields.size(); ++f) {
        step.inputs[f] = reinterpret_cast<const char*>(fields[f].first->data() + row.first * fields[f].second);
      }
      outputs.emplace_back(static_cast<size_t>(row.count * dims.value_features()));
    }
    for (size_t i = 0; i < rows.size(); ++i) job->rows[i].output = reinterpret_cast<char*>(outputs[i].data());
    Arrivals open;
    job->done = &open;
    open.Begin();
    GDN_RETURN_IF_ERROR(batcher.Submit(job));
    GDN_RETURN_IF_ERROR(BlockOn(flows.executor, AllOf(open)));
    absl::Status status;
    for (size_t i = 0; i < rows.size(); ++i) {
      status.Update(job->rows[i].status);
      if (job->rows[i].status.ok()) out.insert(out.end(), outputs[i].begin(), outputs[i].end());
    }
    return status;
  }
  absl::Status Accept(const std::vector<std::shared_ptr<Session>>& sessions, const std::vector<int32_t>& path) {
    std::vector<AcceptRow> rows;
    for (const std::shared_ptr<Session>& session : sessions) {
      const auto count = static_cast<int32_t>(path.size());
      auto leases = session->AdmitAccept(PinOf(session), {.accepted_tokens = count, .path = path});
      if (!leases.ok()) return leases.status();
      for (StepLease& lease : *leases) {
        rows.push_back({.lease = std::move(lease), .accepted_tokens = count, .path = path});
      }
    }
    return BlockOn(flows.executor, AcceptDrafts(batcher, std::move(rows), [] {}));
  }

  Random random{7};
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(OperatorDims(2, 4, 16, 24), kTokens, random);
  FailingBackend backend;
  DeviceHealth health;
  StateStore store;
  ByteLedger ledger;
  SessionEnvironment environment{ledger};
  EngineFlows flows;
  Batcher batcher{backend, health, {}};
  std::vector<float> out;
};

using Sessions = std::vector<std::shared_ptr<Session>>;

struct Scenario {
  std::string name;
  std::function<Sessions(Engine&)> prepare;
  std::function<absl::Status(Engine&, const Sessions&)> call;
};

class FailingStep : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (const auto backend = MakeBackend(GetParam()); !backend.ok()) GTEST_SKIP() << backend.status();
  }
  // Each session's answers to the tokens from 30 on; a lost session answers nothing.
  static std::vector<std::vector<float>> Later(Engine& engine, const Sessions& sessions) {
    std::vector<std::vector<float>> later;
    for (const std::shared_ptr<Session>& session : sessions) {
      engine.out.clear();
      for (int64_t token = 30; token < 30 + kLater && session->CheckAlive().ok(); ++token) {
        EXPECT_TRUE(engine.Decode({{session, token, 1}}).ok());
      }
      later.push_back(engine.out);
    }
    return later;
  }

  void FailEach(const Scenario& scenario) {
    std::vector<std::vector<float>> twin;
    {
      Acquisitions::ForgetCode();
      Engine engine(GetParam());
      const Sessions sessions = scenario.prepare(engine);
      ASSERT_TRUE(scenario.call(engine, sessions).ok()) << scenario.name;
      twin = Later(engine, sessions);
    }
    for (const bool operations : {false, true}) {
      for (const bool all_after : {false, true}) {
        for (int64_t first = 0;; ++first) {
          SCOPED_TRACE(testing::Message() << scenario.name << (operations ? ", operation " : ", acquisition ") << first
                                          << (all_after ? " and all after it" : ""));
          Acquisitions::ForgetCode();
          Engine engine(GetParam());
          const Sessions sessions = scenario.prepare(engine);
          operations ? engine.backend.Fail({first, all_after}) : Acquisitions::Fail({first, all_after});
          absl::Status status = scenario.call(engine, sessions);
          if ((operations ? engine.backend.Stop() : Acquisitions::Stop()) <= first) {
            ASSERT_TRUE(status.ok()) << status;
            break;
          }
          ++points_;
          int64_t lost = 0;
          for (const std::shared_ptr<Session>& session : sessions) lost += session->state_is_lost() ? 1 : 0;
          if (!status.ok() && lost == 0) {
            EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
            status = scenario.call(engine, sessions);
          }
          EXPECT_TRUE(status.ok() || lost > 0) << "sent again: " << status;
          lost_ += lost;
          EXPECT_TRUE(lost == 0 || operations) << "for want of something";
          if (lost > 0 && lost < static_cast<int64_t>(sessions.size())) continue;
          const auto later = Later(engine, sessions);
          for (size_t i = 0; i < sessions.size(); ++i) {
            if (sessions[i]->state_is_lost() || later[i] == twin[i]) continue;
            ++wrong_;
            ADD_FAILURE() << "session " << sessions[i]->id() << " goes on with other numbers than its twin";
          }
        }
      }
    }
  }
  ~FailingStep() override {
    std::printf("%s: %lld points failed in turn, %lld sessions lost, %lld with wrong numbers\n", GetParam().c_str(),
                static_cast<long long>(points_), static_cast<long long>(lost_), static_cast<long long>(wrong_));
  }

  int64_t points_ = 0, lost_ = 0, wrong_ = 0;
};

INSTANTIATE_TEST_SUITE_P(On, FailingStep, testing::ValuesIn(WithOneGpu({"cpu"})),
                         [](const auto& backend) { return backend.param; });

TEST_P(FailingStep, LeavesItsStateAsItWasOrLosesIt) {
  const auto one = [](int64_t decoded) {
    return [decoded](Engine& engine) { return Sessions{engine.Make("a", decoded)}; };
  };
  const auto decode = [](int64_t first, int32_t count) {
    return [first, count](Engine& engine, const Sessions& sessions) {
      return engine.Decode({{sessions[0], first, count}});
    };
  };
  FailEach({"decode of a new state", one(0), decode(0, 1)});
  FailEach({"decode", one(3), decode(3, 1)});
  FailEach({"decode that folds", one(15), decode(15, 1)});
  FailEach({"decode that folds midway", one(14), decode(14, 4)});
  for (const int64_t own : {0, 2}) {
    const auto forked = [own](Engine& engine) {
      const auto parent = engine.Make("a", 13 - own);
      const auto child = engine.Fork(parent, "b");
      for (int64_t token = 13 - own; token < 13; ++token) EXPECT_TRUE(engine.Decode({{child, token, 1}}).ok());
      return Sessions{child, parent};
    };
    FailEach({"fold of a fork", forked, decode(13, 3)});
    FailEach({"fold midway of a fork", forked, decode(13, 5)});
  }
}

TEST_P(FailingStep, OfABatchLeavesEachRowAsItWasOrLosesIt) {
  FailEach({"batch",
            [](Engine& engine) {
              return Sessions{engine.Make("a", 15), engine.Make("b", 3), engine.Make("c", 0)};
            },
            [](Engine& engine, const Sessions& s) {
              return engine.Decode({{s[0], 15, 1}, {s[1], 3, 1}, {s[2], 0, 1}});
            }});
}

TEST_P(FailingStep, OfAnAcceptanceLeavesDraftsAsTheyWereOrLosesThem) {
  const std::vector<int32_t> parents = {-1, 0, 0, 1, 1, 2};
  for (const int64_t decoded : {3, 14}) {
    const auto drafted = [&parents, decoded](bool tree) {
      return [&parents, decoded, tree](Engine& engine) {
        Sessions sessions = {engine.Make("a", decoded), engine.Make("b", 2)};
        for (const auto& session : sessions) {
          EXPECT_TRUE(engine.Decode({{session, 20, 6}}, /*draft=*/true, tree ? parents : std::vector<int32_t>()).ok());
        }
        return sessions;
      };
    };
    FailEach({"draft", [decoded](Engine& engine) { return Sessions{engine.Make("a", decoded)}; },
              [&parents](Engine& engine, const Sessions& s) {
                GDN_RETURN_IF_ERROR(engine.Decode({{s[0], 20, 6}}, /*draft=*/true, parents));
                return engine.Accept(s, {});
              }});
    FailEach({"accepted draft", drafted(false), [](Engine& engine, const Sessions& s) {
                return engine.Accept(s, {0, 1, 2});
              }});
    FailEach({"accepted path", drafted(true), [](Engine& engine, const Sessions& s) {
                return engine.Accept(s, {0, 2, 5});
              }});
  }
}

}  // namespace
}  // namespace gdn::failing_step_test
