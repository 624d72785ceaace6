// A device that is lost at any operation of a step or an export, on the host executor's asynchronous streams.
#include <gtest/gtest.h>

#include <memory>

#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/gpu_on_host/host_streams.h"
#include "tests/integration/service_helpers.h"
#include "tests/integration/token_feed.h"

namespace gdn {
namespace {

using gpu::HostStreams;

class DeviceLost : public testing::Test {
 protected:
  ~DeviceLost() override { HostStreams::ConfigureFromEnvironment(); }
};

TEST_F(DeviceLost, AtAnyOperationRefusesTheCallAndAllAfterIt) {
  const TokenFeed feed = TokenFeed::Operator(1);
  int64_t first = 0;  // of a server that runs
  {
    HostStreams::Configure({.asynchronous = true});
    TestServer server({}, *MakeGpuBackend({}));
    first = HostStreams::operations();
  }
  int64_t lost = 0;
  for (int64_t fail_at = first;; ++fail_at) {
    SCOPED_TRACE(testing::Message() << "operation " << fail_at);
    HostStreams::Configure({.asynchronous = true, .seed = static_cast<uint64_t>(fail_at), .fail_at = fail_at});
    TestServer server({}, *MakeGpuBackend({}));
    const Caller caller(server);
    const auto created = feed.Create(caller, "a");
    const auto prefill = caller.Prefill(feed.Prefill("a", {0, 3}));
    const auto decoded = caller.Decode(feed.Decode({"a"}, TokenRange{3, 1}));
    const auto exported = caller.Export("a");
    if (HostStreams::operations() <= fail_at) {
      EXPECT_TRUE(created.ok() && prefill.ok() && decoded.ok() && exported.ok());
      EXPECT_EQ(HealthOf(server), 1);
      break;
    }
    ++lost;
    EXPECT_EQ(created.ok() ? exported.reason() : created.reason(), "DEVICE_FAILED");
    EXPECT_TRUE(!prefill.ok() || created.ok());
    EXPECT_TRUE(!decoded.ok() || prefill.ok()) << "a step after one whose outcome nobody knows";
    EXPECT_EQ(caller.Decode(feed.Decode({"a"}, TokenRange{4, 1})).reason(),
              created.ok() ? "DEVICE_FAILED" : "SESSION_NOT_FOUND");
    EXPECT_EQ(HealthOf(server), 2);
  }
  EXPECT_GT(lost, 4) << "a step sends its inputs, launches, and brings its outputs back";
}

}  // namespace
}  // namespace gdn
