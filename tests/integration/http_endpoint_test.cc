// The HTTP port of a running server: its metrics say exactly what happened, whatever clients call themselves.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <grpcpp/generic/generic_stub.h>

#include "base/error.h"
#include "kernels/null/null_backend.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/integration/support/token_feed.h"
#include "tests/server/batcher/engine_gate.h"
#include "tests/server/batcher/recording_backend.h"
#include "tests/support/http_client.h"
#include "tests/support/temp_folder.h"
#include "tools/common/child_process.h"

namespace gdn::http_endpoint_test {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using ::testing::Not;

constexpr char kSet[] = "qwen3_next_1";
constexpr int kLayer = 0;

// The samples of Prometheus' text form, "name{labels}" to value. Fails the test where it is not well formed.
std::map<std::string, double> ParseMetrics(const std::string& text) {
  std::map<std::string, double> samples;
  std::set<std::string> helped, typed;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string first, second, third;
    if (line.rfind("# ", 0) == 0) {
      words >> first >> second >> third;
      EXPECT_TRUE(second == "HELP" || second == "TYPE") << line;
      EXPECT_TRUE((second == "HELP" ? helped : typed).insert(third).second) << "twice: " << line;
      continue;
    }
    const size_t space = line.rfind(' ');
    if (space == std::string::npos) {
      ADD_FAILURE() << "no sample: " << line;
      continue;
    }
    const std::string name = line.substr(0, space);
    char* end = nullptr;
    const double value = std::strtod(line.c_str() + space + 1, &end);
    EXPECT_EQ(*end, '\0') << line;
    EXPECT_TRUE(samples.emplace(name, value).second) << "twice: " << line;
    std::string family = name.substr(0, name.find('{'));
    for (const char* const suffix : {"_bucket", "_sum", "_count"}) {
      if (typed.count(family) == 0 && family.ends_with(suffix))
        family.resize(family.size() - std::string(suffix).size());
    }
    EXPECT_TRUE(helped.count(family) == 1 && typed.count(family) == 1) << line;
  }
  EXPECT_EQ(helped, typed);
  return samples;
}

int PortOf(TestServer& server) { return *server.server().http_port(); }

std::map<std::string, double> Scrape(TestServer& server) {
  const HttpReply reply = HttpGet(PortOf(server), "/metrics");
  EXPECT_EQ(reply.status, 200);
  EXPECT_EQ(reply.headers.at("Content-Type"), "text/plain; version=0.0.4; charset=utf-8");
  return ParseMetrics(reply.body);
}

class HttpEndpointTest : public ::testing::Test {
 protected:
  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}, .version = "1.2.3", .http_listen = "127.0.0.1:0"}};
  const Caller caller_{server_};
};

TEST_F(HttpEndpointTest, CountsWhatHappenedExactly) {
  for (const char* id : {"a", "b"}) ASSERT_TRUE(caller_.Create(id, "m").ok());
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", kLayer, RandomTokens(37, /*seed=*/1))).ok());
  const Tokens token = RandomTokens(1, /*seed=*/2);
  ASSERT_TRUE(caller_.Decode(DecodeOf({"a", "b"}, kLayer, {token, token})).ok());
  ASSERT_TRUE(caller_.Decode(DecodeOf({"a"}, kLayer, {token})).ok());
  v1::DecodeRequest draft = DecodeOf({"b"}, kLayer, {RandomTokens(3, /*seed=*/3)});
  draft.set_draft(true);
  ASSERT_TRUE(caller_.Decode(draft).ok());
  EXPECT_TRUE(RefusedAs(caller_.Decode(DecodeOf({"x"}, kLayer, {token})), "SESSION_NOT_FOUND"));
  v1::DecodeRequest partly = DecodeOf({"a", "y"}, kLayer, {token, token});
  partly.set_partial_ok(true);
  ASSERT_TRUE(caller_.Decode(partly).ok());
  grpc::ClientContext context;
  Converse(*server_.stub().StreamDecode(&context),
           {StreamStep(DecodeOf({"a"}, kLayer, {token})), StreamStep(DecodeOf({"z"}, kLayer, {token}))});

  const auto is = Scrape(server_);
  const std::string decode = "gdn_rpc_duration_seconds_count{method=\"Decode\",code=";
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"CreateSession\",code=\"OK\"}"), 2);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"Prefill\",code=\"OK\"}"), 1);
  EXPECT_EQ(is.at(decode + "\"OK\"}"), 4);
  EXPECT_EQ(is.at(decode + "\"NOT_FOUND\"}"), 1);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"StreamDecode\",code=\"OK\"}"), 1);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"StreamDecode\",code=\"NOT_FOUND\"}"), 1);
  EXPECT_THAT(is, Not(Contains(Key("gdn_rpc_duration_seconds_count{method=\"ForkSession\",code=\"OK\"}"))));
  EXPECT_EQ(is.at("gdn_errors_total{reason=\"SESSION_NOT_FOUND\"}"), 3) << "a call, a row, a message";
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"decode\"}"), 5);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"decode\"}"), 5);
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"draft\"}"), 1);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"draft\"}"), 3);
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"prefill\"}"), 1);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"prefill\"}"), 37);
  EXPECT_EQ(is.at("gdn_batch_rows_count{kind=\"decode\"}"), 4);
  EXPECT_EQ(is.at("gdn_batch_rows_sum{kind=\"decode\"}"), 5);
  EXPECT_EQ(is.at("gdn_batch_rows_bucket{kind=\"decode\",le=\"1\"}"), 3);
  EXPECT_EQ(is.at("gdn_queue_duration_seconds_count{kind=\"decode\"}"), 4);
  EXPECT_EQ(is.at("gdn_queue_duration_seconds_count{kind=\"prefill\"}"), 1);
  for (const char* const stage : {"copy_in", "compute", "copy_out"}) {
    EXPECT_EQ(is.at(std::string("gdn_launch_duration_seconds_count{kind=\"decode\",stage=\"") + stage + "\"}"), 4);
  }
  EXPECT_EQ(is.at("gdn_sessions"), 2);
  EXPECT_EQ(is.at("gdn_tier_sessions{tier=\"device\"}"), 2);
  EXPECT_EQ(is.at("gdn_tier_limit_bytes{tier=\"device\"}"), 256 << 20);
  EXPECT_GT(is.at("gdn_pool_held_bytes{pool=\"states\"}"), 0);
  EXPECT_EQ(is.at("gdn_device_failures_total{device=\"0\"}"), 0);
  EXPECT_EQ(is.at("gdn_queued_steps"), 0);
  const std::string numerics = server_.server().backend().info().numerics_id;
  const std::string backend = server_.server().backend().info().name;
  EXPECT_EQ(is.at("gdn_build_info{version=\"1.2.3\",backend=\"" + backend + "\",numerics_id=\"" + numerics + "\"}"), 1);
  EXPECT_GT(is.at("gdn_start_time_seconds"), 1.6e9);
}

TEST_F(HttpEndpointTest, CountsTheRowsOfAStepByTheirKinds) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(caller_.Create(id, "m").ok());
  std::vector<StepPart> parts = {{.id = "a", .tokens = RandomTokens(2, /*seed=*/1)},
                                 {.id = "b", .tokens = RandomTokens(37, /*seed=*/2), .kind = v1::STEP_KIND_PREFILL},
                                 {.id = "c", .tokens = RandomTokens(3, /*seed=*/3), .kind = v1::STEP_KIND_DRAFT}};
  ASSERT_TRUE(caller_.Step(StepOf(parts, kLayer)).ok());
  v1::StepRequest partly = StepOf({parts[0], {.id = "x", .tokens = parts[0].tokens}}, kLayer);
  EXPECT_TRUE(RefusedAs(caller_.Step(partly), "SESSION_NOT_FOUND"));
  partly.set_partial_ok(true);
  ASSERT_TRUE(caller_.Step(partly).ok());
  parts[2].accept = 3;  // and another draft of three
  grpc::ClientContext context;
  Converse(*server_.stub().StreamStep(&context), {StreamStep(StepOf({parts[2]}, kLayer)), StreamStep(partly)});

  const auto is = Scrape(server_);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"Step\",code=\"OK\"}"), 2);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"Step\",code=\"NOT_FOUND\"}"), 1);
  EXPECT_EQ(is.at("gdn_rpc_duration_seconds_count{method=\"StreamStep\",code=\"OK\"}"), 2);
  EXPECT_EQ(is.at("gdn_errors_total{reason=\"SESSION_NOT_FOUND\"}"), 3) << "a call, and two rows";
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"decode\"}"), 3);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"decode\"}"), 6);
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"draft\"}"), 2);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"draft\"}"), 6) << "accepted tokens are not computed again";
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"prefill\"}"), 1);
  EXPECT_EQ(is.at("gdn_tokens_total{kind=\"prefill\"}"), 37);
}

TEST_F(HttpEndpointTest, TimesTheStagesOfTracedCalls) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  v1::TraceCallsRequest keep;
  keep.set_keep(4);
  v1::TraceCallsResponse kept;
  ASSERT_TRUE(server_.stub().TraceCalls(caller_.NewContext().get(), keep, &kept).ok());
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(caller_.Decode(DecodeOf({"a"}, kLayer, {RandomTokens(1, /*seed=*/2)})).ok());
  }
  const char* const replies = "gdn_call_stage_duration_seconds_count{stage=\"reply\"}";
  EXPECT_TRUE(WaitUntil([&] { return Scrape(server_)[replies] == 3; }, "the traces"));
  EXPECT_EQ(Scrape(server_).at("gdn_call_stage_duration_seconds_count{stage=\"compute\"}"), 3);
}

TEST_F(HttpEndpointTest, NoClientMakesMoreSeriesThanThereAre) {
  const Tokens token = RandomTokens(1, /*seed=*/4);
  const auto once = [&](const std::string& name) {
    const Caller caller(server_, "Bearer " + name);
    EXPECT_TRUE(caller.Create(name, "m").ok());
    EXPECT_TRUE(caller.Decode(DecodeOf({name}, kLayer, {token})).ok());
    EXPECT_FALSE(caller.Decode(DecodeOf({name + "-not"}, kLayer, {token})).ok());
    EXPECT_TRUE(caller.Delete(name).ok());
    const auto context = caller.NewContext();
    grpc::GenericStub stub(server_.channel());
    grpc::CompletionQueue queue;
    const grpc::ByteBuffer nothing;
    const auto call = stub.PrepareUnaryCall(context.get(), "/gdn.v1.GdnService/Method" + name, nothing, &queue);
    call->StartCall();
    grpc::ByteBuffer reply;
    grpc::Status status;
    call->Finish(&reply, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    EXPECT_TRUE(queue.Next(&tag, &ok));
    EXPECT_EQ(status.error_code(), grpc::StatusCode::UNIMPLEMENTED);
  };
  once("first");
  const auto before = Scrape(server_);
  for (int i = 0; i < 1000; ++i) once("n" + std::to_string(i));
  const auto after = Scrape(server_);
  std::set<std::string> names_before, names_after;
  for (const auto& [name, value] : before) names_before.insert(name);
  for (const auto& [name, value] : after) names_after.insert(name);
  EXPECT_EQ(names_before, names_after);
  EXPECT_EQ(after.at("gdn_rpc_duration_seconds_count{method=\"Decode\",code=\"OK\"}"), 1001);
  const std::string text = HttpGet(PortOf(server_), "/metrics").body;
  EXPECT_THAT(text, Not(HasSubstr("n77")));
  EXPECT_THAT(text, Not(HasSubstr("127.0.0.1")));
}

TEST_F(HttpEndpointTest, ReadinessTurnsWithTheDrain) {
  EXPECT_EQ(HttpGet(PortOf(server_), "/healthz").body, "ok\n");
  EXPECT_EQ(HttpGet(PortOf(server_), "/readyz").status, 200);
  EXPECT_TRUE(server_.Drain());
  const HttpReply ready = HttpGet(PortOf(server_), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_EQ(ready.body, "not ready: the server is draining\n");
  EXPECT_EQ(HttpGet(PortOf(server_), "/healthz").status, 200);
  EXPECT_EQ(HttpGet(PortOf(server_), "/metrics").status, 200);
}

TEST(HttpEndpointReadiness, TurnsWithADeviceFailure) {
  const std::unique_ptr<Backend> computes = MakeNullBackend();
  auto made = std::make_unique<RecordingBackend>(*computes);
  RecordingBackend* const device = made.get();  // the server's
  TestServer server({.http_listen = "127.0.0.1:0"}, std::move(made));
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(1);
  ASSERT_TRUE(feed.Create(caller, "a").ok());
  EXPECT_EQ(HttpGet(PortOf(server), "/readyz").body, "ready\n");
  device->FailNext(MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed, "the device fell off the bus"));
  EXPECT_TRUE(RefusedAs(caller.Decode(feed.Decode({"a"}, TokenRange{0, 1})), "DEVICE_FAILED"));
  const HttpReply ready = HttpGet(PortOf(server), "/readyz");
  EXPECT_EQ(ready.status, 503);
  EXPECT_THAT(ready.body, HasSubstr("the device has failed"));
  const auto is = Scrape(server);
  EXPECT_EQ(is.at("gdn_device_failures_total{device=\"0\"}"), 1);
  EXPECT_EQ(is.at("gdn_errors_total{reason=\"DEVICE_FAILED\"}"), 1);
  EXPECT_EQ(is.at("gdn_steps_total{kind=\"decode\"}"), 0);
}

TEST(HttpEndpointMetrics, TellOfTiersAndCheckpoints) {
  const TempFolder folder;
  TestServer server({.states = {.disk = {.directory = folder.path()}}, .http_listen = "127.0.0.1:0"});
  const Caller caller(server);
  const TokenFeed feed = TokenFeed::Operator(1);
  ASSERT_TRUE(feed.Create(caller, "a").ok());
  ASSERT_TRUE(caller.Decode(feed.Decode({"a"}, TokenRange{0, 1})).ok());
  EXPECT_GT(Scrape(server).at("gdn_checkpoint_age_seconds"), 0);
  ASSERT_TRUE(caller.Checkpoint("a").ok());
  const auto is = Scrape(server);
  EXPECT_EQ(is.at("gdn_checkpoints_total"), 1);
  EXPECT_EQ(is.at("gdn_checkpoint_failures_total"), 0);
  EXPECT_EQ(is.at("gdn_checkpoint_age_seconds"), 0);
  EXPECT_EQ(is.at("gdn_tier_stores_total{tier=\"disk\"}"), 1);
  EXPECT_EQ(is.at("gdn_tier_problems{tier=\"disk\"}"), 0);
  EXPECT_GT(is.at("gdn_tier_used_bytes{tier=\"disk\"}"), 0);
  EXPECT_THAT(is, Not(Contains(Key("gdn_tier_limit_bytes{tier=\"disk\"}")))) << "the disk alone limits it";
}

TEST_F(HttpEndpointTest, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool > /dev/null") != 0) GTEST_SKIP() << "no promtool (Debian: prometheus)";
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  ASSERT_TRUE(caller_.Decode(DecodeOf({"a"}, kLayer, {RandomTokens(1, /*seed=*/2)})).ok());
  const TempFolder folder;
  std::ofstream(folder.path() + "/metrics") << HttpGet(PortOf(server_), "/metrics").body;
  const std::string command =
      "promtool check metrics < '" + folder.path() + "/metrics' > '" + folder.path() + "/said' 2>&1";
  const int code = std::system(command.c_str());
  std::stringstream said;
  said << std::ifstream(folder.path() + "/said").rdbuf();
  EXPECT_EQ(code, 0) << said.str();
  EXPECT_EQ(said.str(), "");
}

}  // namespace
}  // namespace gdn::http_endpoint_test
