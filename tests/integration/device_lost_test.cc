// A device that is lost at any operation of a step or an export, on the host executor's asynchronous streams.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "kernels/gpu/on_host/host_streams.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"

namespace gdn::device_lost_test {
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

// The same for a step whose rows are of every kind, one of which accepts a draft first.
TEST_F(DeviceLost, AtAnyOperationOfAStepRefusesTheCallAndAllAfterIt) {
  const TokenFeed feed = TokenFeed::Operator(1);
  const std::vector<std::string> ids = {"a", "b", "c"};
  FeedPart accepts = {.id = "a", .range = {10, 1}};
  accepts.path = {0, 2};
  const v1::StepRequest step = feed.Step({accepts,
                                          {.id = "b", .range = {3, 4}, .kind = v1::STEP_KIND_PREFILL},
                                          {.id = "c", .range = {3, 2}, .kind = v1::STEP_KIND_DRAFT}});
  const auto prepare = [&](const Caller& caller) {
    for (const std::string& id : ids) feed.Start(caller, id, {0, 3});
    v1::DecodeRequest draft = feed.Draft({"a"}, {{3, 3}});
    for (const int parent : {-1, 0, 0}) draft.add_draft_parents(parent);
    ASSERT_TRUE(caller.Decode(draft).ok());
  };
  int64_t lost = 0;
  for (int64_t operation = 0;; ++operation) {
    SCOPED_TRACE(testing::Message() << "operation " << operation << " of the step");
    HostStreams::Configure({.asynchronous = true, .seed = static_cast<uint64_t>(operation)});
    TestServer server({}, *MakeGpuBackend({}));
    const Caller caller(server);
    prepare(caller);
    // How many operations come before depends on what the engine merged.
    const int64_t fail_at = HostStreams::FailAfter(operation);
    const auto stepped = caller.Step(step);
    if (HostStreams::operations() <= fail_at) {
      EXPECT_TRUE(stepped.ok()) << stepped.status.error_message();
      break;
    }
    ++lost;
    EXPECT_EQ(stepped.reason(), stepped.ok() ? "" : "DEVICE_FAILED");
    EXPECT_EQ(caller.Step(feed.Step({{.id = "b", .range = {7, 1}}})).reason(), "DEVICE_FAILED");
    for (const std::string& id : ids) EXPECT_EQ(caller.Export(id).reason(), "DEVICE_FAILED") << id;
    EXPECT_EQ(HealthOf(server), 2);
  }
  EXPECT_GT(lost, 4) << "a step sends its inputs, launches, and brings its outputs back";
}

// One of two devices is lost, at each operation of calls that go to both. Sessions on the other go on, with the same
// bits.
TEST_F(DeviceLost, OneOfTwoLeavesTheOthersSessions) {
  const TokenFeed feed = TokenFeed::Operator(1);
  std::string expected;  // outputs of a session that nothing happens to
  {
    HostStreams::Configure({.asynchronous = true});
    TestServer server({}, *MakeGpuBackend({}));
    const Caller caller(server);
    feed.Start(caller, "a", {0, 3});
    expected = feed.DecodeAll(caller, "a", {3, 3});
  }
  const auto make_both = [] {
    std::vector<std::unique_ptr<Backend>> backends;
    for (int device = 0; device < 2; ++device) backends.push_back(*MakeGpuBackend({.device = device}));
    return backends;
  };
  int64_t first = 0;  // of a server that runs, on the second device
  {
    HostStreams::Configure({.asynchronous = true, .devices = 2});
    TestServer server({}, make_both());
    first = HostStreams::operations(1);
  }
  int64_t lost = 0;
  for (int64_t fail_at = first;; ++fail_at) {
    SCOPED_TRACE(testing::Message() << "operation " << fail_at);
    HostStreams::Configure({.asynchronous = true,
                            .seed = static_cast<uint64_t>(fail_at),
                            .fail_at = fail_at,
                            .devices = 2,
                            .fail_device = 1});
    TestServer server({}, make_both());
    const Caller caller(server);
    feed.Start(caller, "a", {0, 3});
    const auto created = feed.Create(caller, "b");  // where there is more room, or where anything is
    ASSERT_TRUE(created.ok());
    const bool prefilled = caller.Prefill(feed.Prefill("b", {0, 3})).ok();
    std::string outputs;
    int64_t rows_of_b = 0;
    for (int64_t t = 3; t < 6; ++t) {
      v1::DecodeRequest both = feed.Decode({"a", "b"}, TokenRange{t, 1});
      both.set_partial_ok(true);
      ASSERT_REPLY(const v1::DecodeResponse reply, caller.Decode(both));
      ASSERT_EQ(reply.row_statuses(0).code(), 0) << reply.row_statuses(0).message();
      outputs += RowTokens(reply.output(), 0, 1);
      rows_of_b += reply.row_statuses(1).code() == 0 ? 1 : 0;
    }
    EXPECT_EQ(outputs, expected);
    if (HostStreams::operations(1) <= fail_at) {
      EXPECT_TRUE(prefilled);
      EXPECT_EQ(rows_of_b, 3);
      EXPECT_EQ(HealthOf(server, "devices"), 1);
      break;
    }
    ++lost;
    // The next step finds a failure behind a step's last copy, unless "b" was made on the device that works.
    const auto next = caller.Decode(feed.Decode({"b"}, TokenRange{6, 1}));
    EXPECT_EQ(next.reason(), next.ok() ? "" : "DEVICE_FAILED");
    EXPECT_EQ(HealthOf(server), 1);
    EXPECT_EQ(HealthOf(server, "devices"), 2);
  }
  EXPECT_GT(lost, 3 * 4) << "each step sends its inputs, launches, and brings its outputs back";
}

}  // namespace
}  // namespace gdn::device_lost_test
