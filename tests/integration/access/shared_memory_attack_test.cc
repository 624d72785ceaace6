// Clients that do with their shared memory what they should not, before, during and after their calls.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/integration/support/shared_memory_fixture.h"
#include "tests/integration/support/step_parts.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/support/assert_ok.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/random.h"
#include "tools/common/child_process.h"

namespace gdn::shared_memory_attack_test {
namespace {

constexpr int kLayer = 0;

class SharedMemoryAttack : public SharedMemoryFixture {
 protected:
  void SetUp() override {
    for (const char* id : {"a", "reference"}) {
      ASSERT_TRUE(caller_.Create(id, "next").ok());
      ASSERT_TRUE(caller_.Prefill(PrefillOf(id, kLayer, inputs_.Slice(0, 20))).ok());
    }
  }
  v1::DecodeRequest Step(const std::string& id, int token, const std::string& request_id = "") const {
    return WithId(DecodeOf({id}, kLayer, {inputs_.Token(20 + token)}), request_id);
  }
  std::string ReferenceOutput(int token) const {
    const auto reply = caller_.Decode(Step("reference", token));
    EXPECT_TRUE(reply.ok()) << reply.status.error_message();
    return reply.reply.output().data();
  }

  // Runs `act`, the client's attack, while its step waits for the engine. Returns the step's outcome.
  Outcome<v1::DecodeResponse> Meanwhile(const v1::DecodeRequest& step, const std::function<void()>& act) {
    EngineBlocker blocker(server_.batcher());
    auto call = Later(step);
    EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
    act();
    blocker.Release();
    return call.get();
  }
};

TEST_F(SharedMemoryAttack, ATruncatedFileIsRefusedBeforeAnythingMoves) {
  const v1::DecodeRequest step = InShared(Step("a", 0));
  const v1::SharedRange input = step.hidden_states().hidden_states().shared();
  v1::DecodeRequest output_only = Step("a", 0);
  *output_only.mutable_output_shared() = step.output_shared();
  ASSERT_EQ(truncate(RegionFile().c_str(), step.output_shared().offset() + 1), 0);
  std::vector<BadCall> calls = {
      {"output", "SHARED_MEMORY_TRUNCATED", "output_shared", [&] { return caller_.Decode(step).status; }},
      {"output alone", "SHARED_MEMORY_TRUNCATED", "output_shared", [&] { return caller_.Decode(output_only).status; }}};
  ExpectRefused(calls, [&] { return caller_.State("a"); });
  ASSERT_EQ(truncate(RegionFile().c_str(), input.offset() + input.bytes() - 1), 0);
  calls = {{"input", "SHARED_MEMORY_TRUNCATED", "hidden_states", [&] { return caller_.Decode(step).status; }}};
  ExpectRefused(calls, [&] { return caller_.State("a"); });
}

TEST_F(SharedMemoryAttack, AFileTruncatedMidCallGetsTheOutputAllTheSame) {
  const v1::DecodeRequest step = InShared(Step("a", 0));
  const auto reply = Meanwhile(step, [&] { EXPECT_EQ(truncate(RegionFile().c_str(), 0), 0); });
  ASSERT_TRUE(reply.ok()) << reply.status.error_message();
  EXPECT_EQ(OutputOf(reply.reply.output()), ReferenceOutput(0));
}

TEST_F(SharedMemoryAttack, AnOutputThatTheSystemRefusesIsInTheReply) {
  const v1::DecodeRequest step = InShared(Step("a", 0));
  Outcome<v1::DecodeResponse> reply;
  {
    const FileSizeLimit limit(step.output_shared().offset() + 8);
    reply = caller_.Decode(step);
  }
  ASSERT_TRUE(reply.ok()) << reply.status.error_message();
  EXPECT_FALSE(reply.reply.output().has_shared());
  EXPECT_EQ(reply.reply.output().data(), ReferenceOutput(0));
  EXPECT_EQ(memory_->View(reply.reply.output()).value().data, reply.reply.output().data());
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(SharedMemoryAttack, BytesChangedMidCallAreNotOfIt) {
  const v1::DecodeRequest step = InShared(Step("a", 0, "id"));
  const auto reply = Meanwhile(step, [&] {
    const absl::Span<char> input = BytesOf(step.hidden_states().hidden_states().shared());
    std::fill(input.begin(), input.end(), '\xff');  // NaN
  });
  ASSERT_TRUE(reply.ok()) << reply.status.error_message();
  const std::string expected = ReferenceOutput(0);
  EXPECT_EQ(OutputOf(reply.reply.output()), expected);
  ASSERT_REPLY(const auto retried, caller_.Decode(Step("a", 0, "id")));
  EXPECT_EQ(retried.output().data(), expected) << "the id stands for the bytes that were computed";
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

// The rows of a step are copied before the first of them runs.
TEST_F(SharedMemoryAttack, BytesChangedWhileAStepsRowsWaitAreNotOfThem) {
  ASSERT_TRUE(caller_.Create("b", "next").ok());
  const StepPart decode = {.id = "a", .tokens = inputs_.Token(20)};
  const StepPart prompt = {.id = "b", .tokens = inputs_.Slice(0, 20), .kind = v1::STEP_KIND_PREFILL};
  const v1::StepRequest step = WithId(InShared(StepOf({decode, prompt})), "id");
  EngineBlocker blocker(server_.batcher());
  auto call = std::async(std::launch::async, [&] { return caller_.Step(step); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 2));
  const absl::Span<char> input = BytesOf(step.hidden_states().hidden_states().shared());
  std::fill(input.begin(), input.end(), '\xff');  // NaN
  blocker.Release();
  ASSERT_REPLY(const auto reply, call.get());
  const std::string expected = OutputOf(reply.output());
  ASSERT_REPLY(const auto retried, caller_.Step(WithId(StepOf({decode, prompt}), "id")));
  EXPECT_EQ(retried.output().data(), expected) << "the id stands for the bytes that were computed";
  EXPECT_EQ(expected.substr(0, expected.size() / 21), ReferenceOutput(0));
  EXPECT_EQ(caller_.State("a"), caller_.State("reference"));
}

TEST_F(SharedMemoryAttack, ARegionThatEndsMidCallIsKeptForTheCall) {
  const v1::DecodeRequest step = InShared(Step("a", 0));
  const int file = open(RegionFile().c_str(), O_RDONLY | O_CLOEXEC);
  const auto reply = Meanwhile(step, [&] {
    memory_ = nullptr;
    EXPECT_TRUE(WaitUntil([&] { return FilesThere() == 0; }, "the region to end"));
    EXPECT_EQ(caller_.Info().reply.shared_memory_bytes(), kRegionBytes) << "the call still has it";
  });
  ASSERT_TRUE(reply.ok()) << reply.status.error_message();
  const v1::SharedRange& range = reply.reply.output().shared();
  std::string output(static_cast<size_t>(range.bytes()), '\0');
  EXPECT_EQ(pread(file, output.data(), output.size(), range.offset()), range.bytes());
  close(file);
  EXPECT_EQ(output, ReferenceOutput(0));
  EXPECT_TRUE(RefusedAs(caller_.Decode(step), "SHARED_REGION_NOT_FOUND"));
  EXPECT_TRUE(WaitUntil([&] { return caller_.Info().reply.shared_memory_bytes() == 0; }, "the count to go back"));
}

TEST_F(SharedMemoryAttack, ACancelledCallLeavesItsRegionAndItsSession) {
  const v1::DecodeRequest step = InShared(Step("a", 0));
  const std::string state = caller_.State("a");
  EngineBlocker blocker(server_.batcher());
  const auto context = caller_.NewContext();
  auto call = std::async(std::launch::async, [&] { return caller_.Decode(*context, step); });
  EXPECT_TRUE(WaitForQueuedSteps(server_, 1));
  CancelAndSettle(caller_, *context);
  EXPECT_EQ(call.get().status.error_code(), grpc::StatusCode::CANCELLED);
  blocker.Release();
  EXPECT_TRUE(WaitForCalls(server_, "a", kLayer, 0));
  EXPECT_EQ(caller_.State("a"), state);
  ASSERT_REPLY(const auto reply, caller_.Decode(step));
  EXPECT_EQ(OutputOf(reply.output()), ReferenceOutput(0));
}

TEST_F(SharedMemoryAttack, AClientThatDiesLeavesNothing) {
  const TempFolder own;
  GDN_ASSERT_OK_AND_ASSIGN(
      auto holder,
      ChildProcess::Start({GDN_SHARED_MEMORY_HOLDER, server_.address(), own.path() + "/ready"}, own.path() + "/log"));
  ASSERT_TRUE(holder.WaitForPort(own.path() + "/ready", absl::Seconds(60)).ok());
  EXPECT_EQ(FilesThere(), 2);
  holder.End(SIGKILL);
  EXPECT_TRUE(WaitUntil([&] { return FilesThere() == 1; }, "the dead client's file to go"));
  EXPECT_TRUE(
      WaitUntil([&] { return caller_.Info().reply.shared_memory_bytes() == kRegionBytes; }, "the count to go back"));
  ASSERT_REPLY(const auto reply, caller_.Decode(InShared(Step("a", 0))));
  EXPECT_EQ(OutputOf(reply.output()), ReferenceOutput(0));
}

// Seeded choices of bad and good ranges.
class RandomRanges {
 public:
  RandomRanges(std::vector<std::string> regions, uint64_t seed) : regions_(std::move(regions)), random_(seed) {}

  bool Coin() { return random_.NextInt(0, 1) == 1; }
  v1::SharedRange Next(int64_t right_bytes, int64_t region_bytes) {
    constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
    v1::SharedRange range;
    range.set_region(Rarely() ? regions_[static_cast<size_t>(Below(static_cast<int>(regions_.size())))] : regions_[0]);
    const int64_t offsets[] = {-1,
                               1,
                               -kMost - 1,
                               kMost,
                               region_bytes,
                               region_bytes - right_bytes + 1,
                               kMost - right_bytes,
                               region_bytes - right_bytes};
    range.set_offset(Rarely() ? offsets[Below(std::size(offsets))]
                              : Below(static_cast<int>(region_bytes - right_bytes)));
    const int64_t lengths[] = {0, -1, right_bytes - 1, right_bytes + 1, kMost, -kMost - 1, region_bytes};
    range.set_bytes(Rarely() ? lengths[Below(std::size(lengths))] : right_bytes);
    return range;
  }

 private:
  bool Rarely() { return random_.NextInt(0, 5) == 0; }
  int Below(size_t count) { return random_.NextInt(0, static_cast<int32_t>(count) - 1); }

  const std::vector<std::string> regions_;  // the first is good
  Random random_;
};

// Does to a file, until it is stopped, whatever its owner may.
class Vandal {
 public:
  Vandal(const std::string& path, int64_t bytes, uint64_t seed)
      : file_(open(path.c_str(), O_RDWR | O_CLOEXEC)), thread_([this, bytes, seed] { Run(bytes, seed); }) {}
  ~Vandal() {
    stop_ = true;
    thread_.join();
    close(file_);
  }

 private:
  void Run(int64_t bytes, uint64_t seed) {
    Random random(seed);
    const auto somewhere = [&] { return random.NextInt(0, static_cast<int32_t>(bytes)); };
    while (!stop_) {
      const std::string noise(64, static_cast<char>(random.Next()));
      switch (random.NextInt(0, 3)) {
        case 0:
          EXPECT_EQ(ftruncate(file_, somewhere()), 0);
          break;
        case 1:
          EXPECT_EQ(ftruncate(file_, bytes), 0);
          break;
        case 2:
          EXPECT_EQ(pwrite(file_, noise.data(), noise.size(), somewhere()), 64);
          break;
        default:
          std::this_thread::yield();
      }
    }
  }

  const int file_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

TEST_F(SharedMemoryAttack, NoRangeAndNoChangeOfTheFileDoesHarm) {
  constexpr int kCalls = 600;
  const std::set<std::string> allowed = {"",
                                         "INVALID_SHARED_RANGE",
                                         "INVALID_TENSOR_DATA",
                                         "NON_FINITE_INPUT",
                                         "SHARED_MEMORY_TRUNCATED",
                                         "SHARED_REGION_NOT_FOUND"};
  Client foreign(server_.channel(), {.token = "somebody else"});
  const auto others = foreign.ShareMemory(kRegionBytes).value();
  const std::string reference = caller_.State("reference");
  RandomRanges ranges({memory_->region(), others->region(), "", "gdn-shm-", "/dev/null"}, /*seed=*/11);
  int64_t applied = 20;
  std::set<std::string> seen;
  for (const bool vandal_at_work : {false, true}) {
    std::unique_ptr<Vandal> vandal;
    if (vandal_at_work) vandal = std::make_unique<Vandal>(RegionFile(), kRegionBytes, /*seed=*/12);
    for (int i = 0; i < kCalls; ++i) {
      v1::DecodeRequest step = Step("a", 0);
      v1::Tensor& tensor = *TensorsOf(step)[0];
      const auto bytes = static_cast<int64_t>(tensor.data().size());
      if (ranges.Coin()) {
        *tensor.mutable_shared() = ranges.Next(bytes, kRegionBytes);
        tensor.clear_data();
      }
      if (ranges.Coin()) *step.mutable_output_shared() = ranges.Next(bytes, kRegionBytes);
      const auto outcome = caller_.Decode(step);
      seen.insert(outcome.reason());
      ASSERT_EQ(allowed.count(outcome.reason()), 1u) << outcome.status.error_message() << step.ShortDebugString();
      applied += outcome.ok() ? 1 : 0;
      ASSERT_EQ(caller_.TokenCount("a", kLayer), applied) << "a refused step moved, or an answered one did not";
    }
  }
  EXPECT_TRUE(seen.contains("") && seen.contains("INVALID_SHARED_RANGE") && seen.contains("SHARED_REGION_NOT_FOUND"));
  EXPECT_EQ(caller_.State("reference"), reference);
  memory_ = client_.ShareMemory(kRegionBytes).value();
  v1::DecodeRequest step = InShared(Step("reference", 0));
  ASSERT_REPLY(const auto reply, caller_.Decode(step));
  EXPECT_EQ(OutputOf(reply.output()).size(), static_cast<size_t>(step.output_shared().bytes()));
}

}  // namespace
}  // namespace gdn::shared_memory_attack_test
