#include "server/batcher/batcher.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/task/arrivals.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "tests/server/batcher/engine_flows.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/server/batcher/recording_backend.h"
#include "tests/server/session/session_test_support.h"
#include "tests/support/assert_ok.h"

namespace gdn::batcher_test {
namespace {

using ::testing::ElementsAre;

// A job with what a call owns beside it: zeros to read and room to write.
struct TestJob {
  TestJob() = default;
  TestJob(const TestJob&) = delete;
  TestJob& operator=(const TestJob&) = delete;
  ~TestJob() {
    if (!done.try_wait()) open.End();  // it was refused: whoever waits for it ends here
  }

  StepJobPtr job = std::make_shared<StepJob>();
  std::vector<float> input;
  std::vector<float> output;
  Arrivals open;
  std::latch* hold = nullptr;  // what the flow that waits for `open` waits for next, as one that sends a long reply
  std::latch done{1};          // that flow has ended

  const absl::Status& status(size_t row = 0) const { return job->rows[row].status; }
};

Task<void> NoteEnd(TestJob& test, RecordingBackend& backend) {
  static_cast<void>(co_await test.open.All());
  if (test.hold != nullptr) test.hold->wait();
  backend.Record(test.job->prefill ? "prefill done" : "decode done");
  test.done.count_down();
}

// Notes that it runs, and then how it ended.
Task<void> RunAndNote(Batcher& batcher, std::string name, absl::Status result, std::vector<std::string>& notes) {
  const auto work = [&](Backend&) {
    notes.push_back(name);
    return result;
  };
  const absl::Status status = co_await batcher.Run(work);
  notes.emplace_back(status.ok() ? "ok" : "failed");
}

Task<absl::Status> RunWork(Batcher& batcher, std::function<absl::Status(Backend&)> work) {
  co_return co_await batcher.Run(work);
}

class BatcherTest : public ::testing::Test {
 protected:
  std::shared_ptr<Session> MakeSession(SessionSpec spec = OperatorSessionSpec()) {
    const std::string id = std::to_string(sessions_.size());
    sessions_.push_back(world_.MakeSession(std::move(spec), id));
    return sessions_.back();
  }

  // A delta_rule step of `tokens` tokens for each session.
  std::unique_ptr<TestJob> MakeJob(const std::vector<std::shared_ptr<Session>>& sessions, int32_t tokens,
                                   bool prefill) {
    auto test = std::make_unique<TestJob>();
    StepJob& job = *test->job;
    const LayerDims& dims = sessions.front()->spec().dims;
    job.prefill = prefill;
    job.shape.kind = InputKind::kDeltaRule;
    job.shape.delta_rule.scale = 1.0f;
    const std::vector<int64_t> features = {dims.key_features(), dims.key_features(), dims.value_features(),
                                           dims.value_heads, dims.value_heads};
    job.shape.field_count = static_cast<int>(features.size());
    for (size_t f = 0; f < features.size(); ++f) job.shape.fields[f] = {.dtype = DType::kF32, .features = features[f]};
    job.shape.output_features = dims.value_features();
    test->input.resize(static_cast<size_t>(tokens * dims.conv_channels()));
    test->output.resize(sessions.size() * static_cast<size_t>(tokens * dims.value_features()));
    for (size_t i = 0; i < sessions.size(); ++i) {
      StepRow& row = job.rows.emplace_back();
      row.lease = AdmitStep(sessions[i]);
      EXPECT_TRUE(row.lease.valid());
      row.tokens = tokens;
      row.inputs.fill(reinterpret_cast<const char*>(test->input.data()));
      row.output =
          reinterpret_cast<char*>(test->output.data() + i * static_cast<size_t>(tokens * dims.value_features()));
    }
    job.done = &test->open;
    test->open.Begin();
    flows_.group.Spawn(NoteEnd(*test, backend_));
    return test;
  }
  std::unique_ptr<TestJob> Decode(const std::vector<std::shared_ptr<Session>>& sessions, int32_t tokens = 1) {
    return MakeJob(sessions, tokens, /*prefill=*/false);
  }
  std::unique_ptr<TestJob> Prefill(const std::shared_ptr<Session>& session, int32_t tokens) {
    return MakeJob({session}, tokens, /*prefill=*/true);
  }
  static int64_t TokenCount(const Session& session) { return session.Layers()[0].progress.token_count; }

  SessionWorld world_;
  RecordingBackend backend_{*world_.backend};
  DeviceHealth health_;
  std::vector<std::shared_ptr<Session>> sessions_;
  EngineFlows flows_;
};

TEST_F(BatcherTest, AStepMovesItsSessionAndKeepsTheReplyWhereWanted) {
  Batcher batcher(backend_, health_, {});
  const auto session = MakeSession();
  auto job = Decode({session}, 3);
  job->job->rows[0].keep_reply = true;
  ASSERT_TRUE(batcher.Submit(job->job).ok());
  job->done.wait();
  EXPECT_TRUE(job->status().ok()) << job->status();
  EXPECT_EQ(job->job->rows[0].token_count, 3);
  EXPECT_EQ(TokenCount(*session), 3);
  EXPECT_EQ(session->Layers()[0].progress.log_length, 3);
  auto prefill = Prefill(session, 40);
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  prefill->done.wait();
  EXPECT_TRUE(prefill->status().ok()) << prefill->status();
  EXPECT_EQ(TokenCount(*session), 43);
  EXPECT_EQ(session->Layers()[0].progress.log_length, 0) << "a prefill leaves a folded state";
}

TEST_F(BatcherTest, DecodesThatWaitTogetherRunAsOneBatch) {
  Batcher batcher(backend_, health_, {});
  EngineBlocker gate(batcher);
  std::vector<std::unique_ptr<TestJob>> jobs;
  jobs.push_back(Decode({MakeSession()}));
  jobs.push_back(Decode({MakeSession(), MakeSession()}, 2));
  jobs.push_back(Decode({MakeSession()}));
  for (const auto& job : jobs) ASSERT_TRUE(batcher.Submit(job->job).ok());
  EXPECT_EQ(batcher.queued_steps(), 3u);
  gate.Release();
  for (const auto& job : jobs) job->done.wait();
  EXPECT_THAT(backend_.events(), ElementsAre("decode of 4", "decode done", "decode done", "decode done"));
  EXPECT_EQ(batcher.queued_steps(), 0u);
}

TEST_F(BatcherTest, OnlyLikeStepsShareABatch) {
  Batcher batcher(backend_, health_, {});
  EngineBlocker gate(batcher);
  std::vector<std::unique_ptr<TestJob>> jobs;
  jobs.push_back(Decode({MakeSession()}));
  jobs.push_back(Decode({MakeSession(OperatorSessionSpec(1, /*value_dim=*/16))}));  // another layout
  jobs.push_back(Decode({MakeSession()}));
  jobs.back()->job->shape.delta_rule.scale = 0.5f;
  jobs.push_back(Decode({MakeSession()}));
  jobs.back()->job->shape.delta_rule.use_qk_l2norm = true;
  jobs.push_back(Decode({MakeSession()}));
  for (const auto& job : jobs) ASSERT_TRUE(batcher.Submit(job->job).ok());
  gate.Release();
  for (const auto& job : jobs) job->done.wait();
  EXPECT_THAT(backend_.events(), ElementsAre("decode of 2", "decode done", "decode done", "decode of 1", "decode done",
                                             "decode of 1", "decode done", "decode of 1", "decode done"));
}

TEST_F(BatcherTest, StepsAreChargedToTheirSessionsAccounts) {
  Batcher batcher(backend_, health_, {});
  const auto session = MakeSession();
  const auto job = Decode({session});
  ASSERT_TRUE(batcher.Submit(job->job).ok());
  job->done.wait();
  EXPECT_EQ(job->job->principal, session->account()->name()) << "an invented principal is nobody new";
}

TEST_F(BatcherTest, ABatchHasAtMostItsRowsAndALargerCallGoesAlone) {
  Batcher batcher(backend_, health_, {.max_batch_rows = 3});
  EngineBlocker gate(batcher);
  std::vector<std::unique_ptr<TestJob>> jobs;
  jobs.push_back(Decode({MakeSession(), MakeSession()}));
  jobs.push_back(Decode({MakeSession(), MakeSession(), MakeSession(), MakeSession()}));
  jobs.push_back(Decode({MakeSession()}));
  for (const auto& job : jobs) ASSERT_TRUE(batcher.Submit(job->job).ok());
  gate.Release();
  for (const auto& job : jobs) job->done.wait();
  EXPECT_THAT(backend_.events(),
              ElementsAre("decode of 2", "decode done", "decode of 4", "decode done", "decode of 1", "decode done"))
      << "a call that does not fit is not passed by its principal's later ones";
}

TEST_F(BatcherTest, ADecodeWaitsForOneSegmentOfAPrefillAtMost) {
  Batcher batcher(backend_, health_, {});
  EngineGate first, second, third;
  first.Post(batcher);
  first.reached.wait();
  auto prefill = Prefill(MakeSession(), 3 * kPrefillSegmentTokens);
  auto decode_before = Decode({MakeSession()});
  auto decode_between = Decode({MakeSession()});
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  ASSERT_TRUE(batcher.Submit(decode_before->job).ok());
  second.Post(batcher);
  first.open.count_down();
  second.reached.wait();  // after the decode that waited, before the first segment
  third.Post(batcher);
  second.open.count_down();
  third.reached.wait();  // after the first segment, with the second one due
  ASSERT_TRUE(batcher.Submit(decode_between->job).ok());
  third.open.count_down();
  prefill->done.wait();
  decode_between->done.wait();
  const std::vector<std::string> events = backend_.events();
  EXPECT_THAT(WithSegmentsAsOne(events), ElementsAre("decode of 1", "decode done", "segments", "decode of 1",
                                                     "decode done", "segments", "prefill done"));
  EXPECT_EQ(events[2], "prefill of 64") << "segments are short while decodes are about";
  EXPECT_EQ(events[3], "decode of 1");
}

// A device that works behind the host, which calls `while_sending` when inputs are on their way to it.
class BehindBackend final : public ForwardingBackend {
 public:
  explicit BehindBackend(Backend& other) : ForwardingBackend(other), info_(other.info()) {
    info_.unified_memory = false;
    info_.merges_sequences = true;
  }
  const BackendInfo& info() const override { return info_; }
  absl::Status StagePiece(void* device, const void* host, size_t bytes) override {
    if (while_sending) std::exchange(while_sending, nullptr)();
    return other_.StagePiece(device, host, bytes);
  }

  std::function<void()> while_sending;

 private:
  BackendInfo info_;
};

TEST_F(BatcherTest, ADecodeThatComesWhileAPrefillsInputsAreSentRunsBeforeIt) {
  BehindBackend behind(backend_);
  Batcher batcher(behind, health_, {});
  auto prefill = Prefill(MakeSession(), 2 * kPrefillSegmentTokens);
  auto decode = Decode({MakeSession()});
  auto second = Decode({MakeSession()});
  behind.while_sending = [&] {
    ASSERT_TRUE(batcher.Submit(decode->job).ok());
    ASSERT_TRUE(batcher.Submit(second->job).ok());
  };
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  for (TestJob* job : {prefill.get(), decode.get(), second.get()}) job->done.wait();
  EXPECT_EQ(backend_.events().front(), "decode of 2");
  EXPECT_TRUE(prefill->status().ok()) << prefill->status();
}

TEST_F(BatcherTest, ADecodeDoesNotWaitForALongReplyToBeSent) {
  BehindBackend behind(backend_);
  Batcher batcher(behind, health_, {});
  auto prefill = Prefill(MakeSession(), 32 * kPrefillSegmentTokens);
  auto decode = Decode({MakeSession()});
  prefill->hold = &decode->done;
  ASSERT_GT(prefill->job->shape.OutputBytes(prefill->job->rows[0].tokens), size_t{1} << 20);
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  while (batcher.queued_steps() > 0) std::this_thread::yield();
  ASSERT_TRUE(batcher.Submit(decode->job).ok());
  for (TestJob* job : {decode.get(), prefill.get()}) job->done.wait();
  EXPECT_EQ(backend_.events().back(), "prefill done");
}

TEST_F(BatcherTest, PrefillsTakeTurnsASegmentALaunch) {
  Batcher batcher(backend_, health_, {});
  EngineBlocker gate(batcher);
  auto longer = Prefill(MakeSession(), 3 * kPrefillSegmentTokens);
  auto shorter = Prefill(MakeSession(), 7);
  auto decode = Decode({MakeSession()});
  ASSERT_TRUE(batcher.Submit(longer->job).ok());
  ASSERT_TRUE(batcher.Submit(shorter->job).ok());
  ASSERT_TRUE(batcher.Submit(decode->job).ok());
  gate.Release();
  for (TestJob* job : {longer.get(), shorter.get(), decode.get()}) job->done.wait();
  EXPECT_THAT(WithSegmentsAsOne(backend_.events()),
              ElementsAre("decode of 1", "decode done", "segments", "prefill of 7", "prefill done", "segments",
                          "prefill done"));
  EXPECT_EQ(backend_.events()[3], "prefill of 7");
}

TEST_F(BatcherTest, SegmentsAreLongWhereNothingWaits) {
  Batcher batcher(backend_, health_, {});
  auto prefill = Prefill(MakeSession(), 2 * kPrefillSegmentTokens);
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  prefill->done.wait();
  const std::string segment = "prefill of " + std::to_string(kPrefillSegmentTokens);
  EXPECT_THAT(backend_.events(), ElementsAre(segment, segment, "prefill done"));
}

TEST_F(BatcherTest, AFullQueueRefusesAndWhatItHoldsStillRuns) {
  Batcher batcher(backend_, health_, {.max_queued_steps = 2});
  EngineBlocker gate(batcher);
  auto decode = Decode({MakeSession()});
  auto prefill = Prefill(MakeSession(), 2);
  auto refused = Decode({MakeSession()});
  ASSERT_TRUE(batcher.Submit(decode->job).ok());
  ASSERT_TRUE(batcher.Submit(prefill->job).ok());
  const absl::Status status = batcher.Submit(refused->job);
  ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kQueueFull);
  gate.Release();
  decode->done.wait();
  prefill->done.wait();
  EXPECT_FALSE(refused->done.try_wait());
  EXPECT_TRUE(batcher.Submit(refused->job).ok());
  refused->done.wait();
}

TEST_F(BatcherTest, CancelledAndExpiredStepsAreDroppedWhileTheOthersOfTheirBatchRun) {
  Batcher batcher(backend_, health_, {});
  EngineBlocker gate(batcher);
  const std::vector<std::shared_ptr<Session>> sessions = {MakeSession(), MakeSession(), MakeSession(), MakeSession()};
  auto cancelled = Decode({sessions[0]});
  auto expired = Decode({sessions[1]});
  auto wanted = Decode({sessions[2]});
  auto cancelled_prefill = Prefill(sessions[3], 5);
  for (TestJob* job : {cancelled.get(), expired.get(), wanted.get(), cancelled_prefill.get()}) {
    if (job == expired.get()) job->job->deadline = SteadyNow() - absl::Milliseconds(1);
    ASSERT_TRUE(batcher.Submit(job->job).ok());
  }
  cancelled->job->Cancel();
  cancelled_prefill->job->Cancel();
  gate.Release();
  for (TestJob* job : {cancelled.get(), expired.get(), wanted.get(), cancelled_prefill.get()}) {
    job->done.wait();
  }
  ExpectError(cancelled->status(), absl::StatusCode::kCancelled, reason::kCallCancelled);
  ExpectError(expired->status(), absl::StatusCode::kDeadlineExceeded, reason::kDeadlineExceeded);
  EXPECT_EQ(ErrorReason(cancelled_prefill->status()), reason::kCallCancelled);
  EXPECT_TRUE(wanted->status().ok());
  EXPECT_EQ(TokenCount(*sessions[2]), 1);
  for (const size_t i : {0, 1, 3}) {
    EXPECT_EQ(TokenCount(*sessions[i]), 0);
    EXPECT_TRUE(AdmitStep(sessions[i]).fresh());
  }
}

TEST_F(BatcherTest, AFailingDeviceFailsTheStepAndLeavesTheSession) {
  Batcher batcher(backend_, health_, {});
  const auto session = MakeSession();
  for (const bool prefill : {false, true}) {
    backend_.FailNext(absl::InternalError("the device is on fire"));
    auto job = MakeJob({session}, 2, prefill);
    ASSERT_TRUE(batcher.Submit(job->job).ok());
    job->done.wait();
    EXPECT_EQ(job->status().code(), absl::StatusCode::kInternal);
    EXPECT_EQ(TokenCount(*session), 0);
    const StepLease lease = AdmitStep(session);
    ASSERT_TRUE(lease.valid());
    EXPECT_TRUE(lease.fresh());
  }
  auto job = Decode({session});
  ASSERT_TRUE(batcher.Submit(job->job).ok());
  job->done.wait();
  EXPECT_TRUE(job->status().ok()) << job->status();
}

TEST_F(BatcherTest, ALostDeviceIsReportedOnceAndNothingIsComputedOnItsStatesAgain) {
  std::atomic<int> reports{0};
  DeviceHealth health([&reports](const absl::Status& status) {
    EXPECT_EQ(ErrorReason(status), reason::kDeviceFailed);
    ++reports;
  });
  Batcher batcher(backend_, health, {});
  const auto session = MakeSession();
  const auto other = MakeSession();
  EngineBlocker gate(batcher);
  // The first step meets the failure; the others were already waiting.
  backend_.FailNext(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus"));
  auto failing = MakeJob({session}, 2, /*prefill=*/false);
  auto waiting = MakeJob({other}, 40, /*prefill=*/true);
  ASSERT_TRUE(batcher.Submit(failing->job).ok());
  ASSERT_TRUE(batcher.Submit(waiting->job).ok());
  gate.Release();
  failing->done.wait();
  waiting->done.wait();
  for (const auto* job : {failing.get(), waiting.get()}) {
    ExpectError(job->status(), absl::StatusCode::kUnavailable, reason::kDeviceFailed);
  }
  EXPECT_EQ(TokenCount(*session), 0);
  EXPECT_EQ(TokenCount(*other), 0);
  EXPECT_THAT(backend_.events(), ElementsAre("decode done", "prefill done")) << "no kernel ran";

  auto late = Decode({other});
  EXPECT_EQ(ErrorReason(batcher.Submit(late->job)), reason::kDeviceFailed);
  bool ran = false;
  const absl::Status status = BlockOn(flows_.executor, RunWork(batcher, [&ran](Backend&) {
                                        ran = true;
                                        return absl::OkStatus();
                                      }));
  EXPECT_EQ(ErrorReason(status), reason::kDeviceFailed) << "a state that may be torn is not exported";
  EXPECT_FALSE(ran);
  EXPECT_EQ(reports, 1);
}

TEST_F(BatcherTest, AStepOfNoTokensEndsWellWithoutTheDevice) {
  Batcher batcher(backend_, health_, {});
  const auto session = MakeSession();
  for (const bool prefill : {false, true}) {
    auto job = MakeJob({session}, 0, prefill);
    ASSERT_TRUE(batcher.Submit(job->job).ok());
    job->done.wait();
    EXPECT_TRUE(job->status().ok());
  }
  EXPECT_EQ(TokenCount(*session), 0);
  EXPECT_THAT(backend_.events(), ElementsAre("decode done", "prefill done"));
}

TEST_F(BatcherTest, WorkRunsInOrderAndTellsHowItEnded) {
  Batcher batcher(backend_, health_, {});
  std::vector<std::string> notes;
  flows_.group.Spawn(RunAndNote(batcher, "one", absl::OkStatus(), notes));
  flows_.group.Spawn(RunAndNote(batcher, "two", absl::InternalError("x"), notes));
  flows_.group.Wait();
  EXPECT_THAT(notes, ElementsAre("one", "ok", "two", "failed"));
}

Task<std::thread::id> ThreadAfterWork(Batcher& batcher, std::thread::id& of_work) {
  const auto work = [&of_work](Backend&) {
    of_work = std::this_thread::get_id();
    return absl::OkStatus();
  };
  static_cast<void>(co_await batcher.Run(work));
  co_return std::this_thread::get_id();
}

TEST_F(BatcherTest, AFlowGoesOnAtItsOwnExecutorAfterItsWork) {
  Batcher batcher(backend_, health_, {});
  std::thread::id of_work, inline_work;
  ThreadExecutor executor({.threads = 1});
  EXPECT_NE(BlockOn(executor, ThreadAfterWork(batcher, of_work)), of_work);
  EXPECT_EQ(BlockOn(flows_.executor, ThreadAfterWork(batcher, inline_work)), of_work);
  EXPECT_EQ(inline_work, of_work) << "the engine's thread";
}

TEST_F(BatcherTest, DrainingRefusesNewStepsAndWaitsForOldOnes) {
  Batcher batcher(backend_, health_, {});
  EngineBlocker gate(batcher);
  auto accepted = Prefill(MakeSession(), 2 * kPrefillSegmentTokens);
  ASSERT_TRUE(batcher.Submit(accepted->job).ok());
  EXPECT_FALSE(batcher.Drain(absl::Milliseconds(10)));
  auto refused = Decode({MakeSession()});
  const absl::Status status = batcher.Submit(refused->job);
  ExpectError(status, absl::StatusCode::kUnavailable, reason::kServerDraining);
  gate.Release();
  EXPECT_TRUE(batcher.Drain(absl::Seconds(60)));
  EXPECT_TRUE(accepted->done.try_wait());
  EXPECT_TRUE(accepted->status().ok());
}

TEST_F(BatcherTest, DestructionDrainsWhatWasSubmitted) {
  std::vector<std::unique_ptr<TestJob>> jobs;
  std::vector<std::string> notes;
  {
    Batcher batcher(backend_, health_, {});
    EngineBlocker gate(batcher);
    for (int i = 0; i < 3; ++i) jobs.push_back(Decode({MakeSession()}));
    jobs.push_back(Prefill(MakeSession(), 3 * kPrefillSegmentTokens));
    for (const auto& job : jobs) ASSERT_TRUE(batcher.Submit(job->job).ok());
    flows_.group.Spawn(RunAndNote(batcher, "work", absl::OkStatus(), notes));
    gate.Release();
  }
  for (const auto& job : jobs) {
    EXPECT_TRUE(job->done.try_wait());
    EXPECT_TRUE(job->status().ok()) << job->status();
  }
  EXPECT_THAT(notes, ElementsAre("work", "ok"));
}

}  // namespace
}  // namespace gdn::batcher_test
