// A device that fails under a running server.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

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
  EXPECT_EQ(caller.Export("a").reason(), "DEVICE_FAILED") << "nobody knows what the state is";
  EXPECT_EQ(caller.TokenCount("a", 0), 1) << "what needs no device is answered";
  EXPECT_EQ(HealthOf(server), 2);
}

}  // namespace
}  // namespace gdn::device_failure_test
