// The end of a server: what it waits for, what it says of it, and that it comes.
#include <gmock/gmock.h>
#include <grpcpp/create_channel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/threads/stop_signal.h"
#include "server/process_end.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/server/batcher/recording_backend.h"
#include "tests/support/host_memory_backend.h"
#include "tests/support/temp_folder.h"

namespace gdn::drain_test {
namespace {

// Hangs in its destructor, as a driver that never returns from closing its last stream.
class HangingBackend : public HostMemoryBackend {
 public:
  HangingBackend() : HostMemoryBackend(/*unified_memory=*/true) {}
  ~HangingBackend() override {
    for (;;) absl::SleepFor(absl::Hours(1));
  }
};

std::unique_ptr<GdnServer> Started(std::unique_ptr<Backend> backend) {
  auto server =
      *GdnServer::Make(std::move(backend), {.memory = {.device_state_bytes = int64_t{1} << 24, .host_state_bytes = 0}});
  const absl::Status started = server->Start();
  if (!started.ok()) std::abort();
  return server;
}

// A server that ends with a session whose last checkpoint cannot be written: a file stands where the folder was, so
// that root fails too.
[[noreturn]] void EndWithoutADisk() {
  int code = 0;
  {
    const TempFolder folder;
    auto server = *GdnServer::Make(MakeTestBackend(/*threads=*/1),
                                   {.memory = {.device_state_bytes = int64_t{1} << 24},
                                    .states = {.disk = {.directory = folder.path() + "/states"}}});
    if (!server->Start().ok()) std::abort();
    {
      const auto stub = v1::GdnService::NewStub(
          grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
      grpc::ClientContext context;
      v1::CreateSessionResponse response;
      if (!stub->CreateSession(&context, TokenFeed::Operator(1).Creation("a"), &response).ok()) std::abort();
    }
    std::filesystem::remove_all(folder.path() + "/states/sessions");
    std::ofstream(folder.path() + "/states/sessions") << "x";
    code = DrainAndEnd(std::move(server), {.destruction = absl::Minutes(1)});
  }
  std::exit(code);
}

constexpr int64_t kHostBytes = int64_t{1} << 24;

// A server with room for one session on its device, whose device fails under the second: it ends on its own account,
// and a server after it has the first, at its last step.
[[noreturn]] void EndOnDeviceFailure() {
  const TokenFeed feed = TokenFeed::Operator(1);
  int64_t session_bytes = 0;
  {
    TestServer server;
    session_bytes = Caller(server).Create(feed.Creation("probe")).reply.state_bytes();
  }
  const TempFolder folder;
  StopSignal failed;
  GdnServerOptions options = {.memory = {.device_state_bytes = session_bytes, .host_state_bytes = kHostBytes},
                              .states = {.disk = {.directory = folder.path() + "/states"}},
                              .on_device_failure = [&failed] { failed.Give(); }};
  const std::unique_ptr<Backend> computes = MakeTestBackend(/*threads=*/1);
  auto made = std::make_unique<RecordingBackend>(*computes);
  RecordingBackend* const device = made.get();
  auto server = *GdnServer::Make(std::move(made), options);
  if (!server->Start().ok()) std::abort();
  const auto stub = v1::GdnService::NewStub(
      grpc::CreateChannel("127.0.0.1:" + std::to_string(server->port()), grpc::InsecureChannelCredentials()));
  const auto decode = [&](const std::string& id, int64_t token) {
    grpc::ClientContext context;
    v1::DecodeResponse response;
    return stub->Decode(&context, feed.Decode({id}, TokenRange{token, 1}), &response);
  };
  for (const char* id : {"rests", "on_device"}) {
    grpc::ClientContext context;
    v1::CreateSessionResponse response;
    if (!stub->CreateSession(&context, feed.Creation(id), &response).ok()) std::abort();
    for (int64_t token = 0; token < 3; ++token) {
      if (!decode(id, token).ok()) std::abort();  // the second one's first sends the first one to host memory
    }
  }
  device->FailNext(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus"));
  if (decode("on_device", 3).ok() || !failed.GivenWithin(absl::Minutes(5))) std::abort();
  const int code = DrainAndEnd(std::move(server), {.destruction = absl::Minutes(5), .tell_of_device = true});

  TestServer next({.states = {.disk = {.directory = options.states.disk.directory}}});
  const Caller caller(next);
  if (caller.TokenCount("rests", 0) != 3) std::abort();
  if (caller.Decode(feed.Decode({"on_device"}, TokenRange{3, 1})).ok()) std::abort();
  std::exit(code);
}

class ProcessEndDeathTest : public ::testing::Test {
 protected:
  ProcessEndDeathTest() { testing::FLAGS_gtest_death_test_style = "threadsafe"; }
};

TEST_F(ProcessEndDeathTest, ComesThoughTheDriverHangs) {
  EXPECT_EXIT(std::exit(DrainAndEnd(Started(std::make_unique<HangingBackend>()), {.destruction = absl::Seconds(1)})),
              testing::ExitedWithCode(0), "");
}

TEST_F(ProcessEndDeathTest, SaysThatASessionIsNotDurable) {
  EXPECT_EXIT(EndWithoutADisk(), testing::ExitedWithCode(kDrainFailed), "");
}

TEST_F(ProcessEndDeathTest, OnDeviceFailureKeepsWhatRestsBelowTheDevice) {
  EXPECT_EXIT(EndOnDeviceFailure(), testing::ExitedWithCode(kDeviceFailed), "");
}

TEST(Drain, GivesAnExportTheTimeItTakes) {
  TestServer server;
  const Caller caller(server);
  // One state of 16 MiB: more than lies in a connection that is not read.
  v1::OperatorSpec spec;
  spec.set_layer_count(1);
  spec.set_key_heads(1);
  spec.set_value_heads(64);
  spec.set_key_dim(256);
  spec.set_value_dim(256);
  ASSERT_TRUE(caller.CreateOperator("a", spec).ok());
  Random random(1);
  v1::PrefillRequest prefill;
  prefill.set_session("sessions/a");
  *prefill.mutable_delta_rule() = DeltaRuleOf(RandomDeltaRuleInputs(OperatorDims(1, 64, 256, 256), 1, random), {1});
  ASSERT_TRUE(caller.Prefill(prefill).ok());

  grpc::ClientContext context;
  v1::ExportStateRequest request;
  request.set_name("sessions/a");
  const auto stream = server.stub().ExportState(&context, request);
  v1::ExportStateResponse piece;
  ASSERT_TRUE(stream->Read(&piece));
  std::atomic<bool> drained = false;
  std::thread drain([&] {
    EXPECT_TRUE(server.server().Drain(absl::Minutes(1), absl::Minutes(1)));
    drained = true;
  });
  EXPECT_TRUE(WaitUntil([&] { return HealthOf(server) != 1; }, "the drain to begin"));
  absl::SleepFor(absl::Seconds(2));  // the reader's own pause, longer than what streams at rest get
  EXPECT_FALSE(drained);
  while (stream->Read(&piece)) {
  }
  const grpc::Status read = stream->Finish();
  EXPECT_TRUE(read.ok()) << read.error_message();
  drain.join();
}

TEST(Drain, WaitsForAStepOfRowsOfEveryKindAndKeepsIt) {
  const TempFolder folder;
  const TokenFeed feed = TokenFeed::Operator(1);
  const GdnServerOptions options = {.states = {.disk = {.directory = folder.path() + "/states"}}};
  const std::vector<std::string> ids = {"a", "b", "c"};
  {
    TestServer server(options);
    const Caller caller(server);
    for (const std::string& id : ids) feed.Start(caller, id, {0, 5});
    ASSERT_TRUE(caller.Decode(feed.Draft({"c"}, {{5, 4}})).ok());
    EngineBlocker engine(server.batcher());
    std::thread step([&] {
      FeedPart draft = {.id = "c", .range = {9, 3}, .kind = v1::STEP_KIND_DRAFT};
      draft.accept = 2;
      ASSERT_REPLY(
          const auto reply,
          caller.Step(feed.Step(
              {{.id = "a", .range = {5, 1}}, {.id = "b", .range = {5, 40}, .kind = v1::STEP_KIND_PREFILL}, draft})));
      EXPECT_THAT(reply.token_counts(), testing::ElementsAre(6, 45, 7));
    });
    EXPECT_TRUE(WaitUntil([&] { return server.batcher().queued_steps() > 0; }, "the step to be queued"));
    std::atomic<bool> drained = false;
    std::thread drain([&] {
      EXPECT_TRUE(server.Drain());
      drained = true;
    });
    EXPECT_TRUE(WaitUntil([&] { return HealthOf(server) != 1; }, "the drain to begin"));
    EXPECT_FALSE(drained);
    engine.Release();
    step.join();
    drain.join();
  }
  TestServer next(options);
  const Caller caller(next);
  EXPECT_EQ(caller.TokenCount("a", 0), 6);
  EXPECT_EQ(caller.TokenCount("b", 0), 45);
  EXPECT_EQ(caller.TokenCount("c", 0), 7);
  EXPECT_EQ(caller.Get("c").reply.layers(0).draft_length(), 3);
}

}  // namespace
}  // namespace gdn::drain_test
