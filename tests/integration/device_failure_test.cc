// A device that fails under a running server.
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

#include "base/error.h"
#include "kernels/null/null_backend.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/recording_backend.h"

namespace gdn::device_failure_test {
namespace {

TEST(DeviceFailure, RefusesWhatTouchesStatesForGoodAndTurnsHealth) {
  const std::unique_ptr<Backend> computes = MakeNullBackend();
  auto made = std::make_unique<RecordingBackend>(*computes);
  RecordingBackend* const device = made.get();  // the server's
  TestServer server({}, std::move(made));
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(1);
  for (const char* id : {"a", "b"}) ASSERT_TRUE(feed.Create(caller, id).ok());
  ASSERT_TRUE(caller.Decode(feed.Decode({"a"}, TokenRange{0, 1})).ok());
  EXPECT_EQ(HealthOf(server), 1);

  device->FailNext(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus"));
  EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"a"}, TokenRange{1, 1})), "DEVICE_FAILED"));
  EXPECT_EQ(caller.Decode(feed.Decode({"b"}, TokenRange{0, 1})).reason(), "DEVICE_FAILED") << "though it would work";
  for (const v1::StepKind kind : {v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT, v1::STEP_KIND_PREFILL}) {
    const FeedPart part = {.id = "b", .range = {0, 1}, .kind = kind};
    EXPECT_EQ(caller.Step(feed.Step({part})).reason(), "DEVICE_FAILED") << v1::StepKind_Name(kind);
  }
  EXPECT_EQ(caller.Export("a").reason(), "DEVICE_FAILED") << "nobody knows what the state is";
  EXPECT_EQ(caller.TokenCount("a", 0), 1) << "what needs no device is answered";
  EXPECT_EQ(HealthOf(server), 2);
}

// The rows of one step are jobs of their own: one fails, and nobody trusts the device after that.
TEST(DeviceFailure, InAnyRowOfAStepIsTheCallsError) {
  for (const int failing : {0, 1}) {
    SCOPED_TRACE(failing);
    const std::unique_ptr<Backend> computes = MakeNullBackend();
    auto made = std::make_unique<RecordingBackend>(*computes);
    RecordingBackend* const device = made.get();  // the server's
    TestServer server({}, std::move(made));
    const Caller caller(server);
    const TokenFeed feed = TokenFeed::Operator(1);
    for (const char* id : {"a", "b"}) ASSERT_TRUE(feed.Create(caller, id).ok());
    std::vector<FeedPart> parts = {{.id = "a", .range = {0, 2}}, {.id = "b", .range = {0, 2}}};
    parts[static_cast<size_t>(failing)].kind = v1::STEP_KIND_PREFILL;
    device->FailNext(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus"));
    EXPECT_TRUE(RefusedAs(caller.Step(feed.Step(parts)), "DEVICE_FAILED"));
    EXPECT_EQ(caller.TokenCount("a", 0) + caller.TokenCount("b", 0), 0) << "the row behind the failure did not step";
    EXPECT_EQ(HealthOf(server), 2);
  }
}

}  // namespace
}  // namespace gdn::device_failure_test
