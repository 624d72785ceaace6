// Runs the program itself and reads its JSON. Nothing here depends on how long anything takes.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "base/threads/processors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace gdn::bench_run_test {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

struct Outcome {
  int exit_code = -1;
  std::string out;  // stdout, or with 2>&1 both
};

Outcome RunProgram(const std::string& program, const std::string& arguments) {
  Outcome outcome;
  FILE* pipe = popen((GDN_BINARY_DIR "/bin/" + program + " " + arguments).c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t n; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.out.append(buffer, n);
  const int status = pclose(pipe);
  if (WIFEXITED(status)) outcome.exit_code = WEXITSTATUS(status);
  return outcome;
}

Outcome RunGdnBench(const std::string& arguments) { return RunProgram("gdn_bench", arguments); }

// Runs the program, expects it to succeed, and returns the JSON that it prints.
Json RunForJson(const std::string& program, const std::string& arguments) {
  const Outcome outcome = RunProgram(program, arguments);
  EXPECT_EQ(outcome.exit_code, 0);
  Json json = Json::parse(outcome.out, nullptr, /*allow_exceptions=*/false);
  EXPECT_FALSE(json.is_discarded()) << outcome.out;
  return json;
}

void ExpectSummary(const Json& summary, int64_t count) {
  EXPECT_GT(summary.at("median").get<double>(), 0);
  EXPECT_LE(summary.at("p10").get<double>(), summary.at("median").get<double>());
  EXPECT_GE(summary.at("p90").get<double>(), summary.at("median").get<double>());
  EXPECT_EQ(summary.at("count").get<int64_t>(), count);
}

TEST(GdnBenchKernel, JsonHoldsWhatTheDocumentationSays) {
  const Json json = RunForJson(
      "gdn_bench", "kernel --filter '^(decode_deferred/B=1|prefill_chunk/T=64)$' --repeat 2 --min-time 0 --json");
  EXPECT_EQ(json.at("command"), "kernel");
  EXPECT_EQ(json.at("backend").at("name"), "cpu");
  EXPECT_GT(json.at("backend").at("threads").get<int>(), 0);
  EXPECT_NE(json.at("backend").at("numerics_id"), "");
  EXPECT_GT(json.at("last_level_cache_bytes").get<int64_t>(), 0);
  EXPECT_GE(json.at("load_average").get<double>(), 0);
  EXPECT_FALSE(json.contains("gpu"));
  ASSERT_EQ(json.at("cases").size(), 2u);
  EXPECT_EQ(json.at("cases")[0].at("name"), "decode_deferred/B=1");
  EXPECT_EQ(json.at("cases")[1].at("name"), "prefill_chunk/T=64");
  for (const Json& c : json.at("cases")) {
    SCOPED_TRACE(c.dump());
    for (const char* key : {"time_us", "limit_us", "fraction_of_limit"}) ExpectSummary(c.at(key), 2);
    for (const char* key : {"read_gb_s", "copy_gb_s", "update_gb_s", "fma_gflop_s"}) {
      ExpectSummary(c.at("limits").at(key), 2);
    }
    EXPECT_TRUE(c.at("bound") == "memory" || c.at("bound") == "arithmetic");
    EXPECT_EQ(c.at("timed_by"), "calls");
    EXPECT_FALSE(c.contains("launch_us"));
    EXPECT_TRUE(c.at("cold").is_boolean());
    for (const char* key : {"tokens", "tokens_per_s", "bytes_read", "bytes_written", "flops", "gb_s", "gflop_s",
                            "working_set_bytes", "steps_per_round"}) {
      EXPECT_GT(c.at(key).get<double>(), 0) << key;
    }
  }
}

TEST(GdnBenchKernel, ListsItsCases) {
  const Outcome outcome = RunGdnBench("kernel --list --filter layer_");
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.out,
            "layer_decode/BF16/B=1\nlayer_decode/BF16/B=8\nlayer_decode/BF16/B=32\n"
            "layer_draft/BF16/chain=16\nlayer_draft/BF16/tree=16\n"
            "layer_prefill/BF16/T=512\nlayer_prefill/BF16/T=2048\n");
}

TEST(GdnBenchKernel, TimesLayersInOtherProductsThanExactOnes) {
  const Outcome listed = RunGdnBench("kernel --list --math=int8");
  EXPECT_EQ(listed.exit_code, 0);
  EXPECT_EQ(listed.out,
            "layer_decode/Q8_0/narrow/B=1/math=int8\nlayer_decode/Q8_0/narrow/B=8/math=int8\n"
            "layer_decode/Q8_0/narrow/B=32/math=int8\nlayer_prefill/Q8_0/narrow/T=512/math=int8\n"
            "layer_prefill/Q8_0/narrow/T=2048/math=int8\n");
  const Json json =
      RunForJson("gdn_bench", "kernel --math=int8 --filter '^layer_decode/.*/B=1/' --repeat=1 --min-time=0 --json");
  EXPECT_THAT(json.at("backend").at("numerics_id").get<std::string>(), testing::EndsWith("-int8"));
  ASSERT_EQ(json.at("cases").size(), 1);
  EXPECT_EQ(json.at("cases")[0].at("name"), "layer_decode/Q8_0/narrow/B=1/math=int8");
  const Outcome refused = RunGdnBench("kernel --math=half 2>&1");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_THAT(refused.out, HasSubstr("--math=half is for a GPU"));
}

TEST(GdnBenchKernel, UsesTheInstructionSetThatItIsTold) {
  const Outcome refused = RunGdnBench("kernel --simd=mmx 2>&1");
  EXPECT_EQ(refused.exit_code, 1);
  ASSERT_THAT(refused.out, HasSubstr("use one of "));
  // The last of them is the slowest, which no processor that has a better one takes by itself.
  const std::string slowest =
      refused.out.substr(refused.out.rfind(' ') + 1, refused.out.rfind('\n') - refused.out.rfind(' ') - 1);
  const Json json = RunForJson(
      "gdn_bench", "kernel --simd=" + slowest + " --filter '^decode_deferred/B=1$' --repeat=1 --min-time=0 --json");
  EXPECT_THAT(json.at("backend").at("numerics_id").get<std::string>(), HasSubstr("cpu-" + slowest + "-"));
  EXPECT_EQ(RunGdnBench("kernel --backend=gpu --simd=" + slowest + " 2>&1").exit_code, 1);
}

#ifdef GDN_HAS_BENCH_HOST
TEST(GdnBenchKernel, MeasuresTheHostExecutorAsAGpu) {
  const std::string filter = "--filter '^decode_deferred/B=1$'";
  const Json json = RunForJson("gdn_bench_host", "kernel --backend=host " + filter + " --repeat=1 --min-time=0 --json");
  EXPECT_EQ(json.at("backend").at("name"), "host");
  EXPECT_EQ(json.at("gpu").at("vendor"), "host");
  for (const char* key : {"wave_width", "processors", "total_bytes", "l2_bytes"}) {
    EXPECT_GT(json.at("gpu").at(key).get<int64_t>(), 0) << key;
  }
  for (const char* key : {"name", "architecture", "runtime_version", "driver_version", "clock_khz", "memory_clock_khz",
                          "memory_bus_bits"}) {
    EXPECT_TRUE(json.at("gpu").contains(key)) << key;
  }
  EXPECT_EQ(json.at("last_level_cache_bytes"), json.at("gpu").at("l2_bytes"));
  ASSERT_EQ(json.at("cases").size(), 1u);
  const Json& c = json.at("cases")[0];
  EXPECT_EQ(c.at("timed_by"), "launches");
  for (const char* key : {"time_us", "launch_us", "limit_us", "fraction_of_limit"}) ExpectSummary(c.at(key), 1);
  for (const char* key : {"read_gb_s", "copy_gb_s", "update_gb_s", "fma_gflop_s"}) {
    ExpectSummary(c.at("limits").at(key), 1);
  }
  EXPECT_EQ(c.at("steps_per_round").get<int64_t>() % 16, 0);  // a turn of log lengths
}

TEST(GdnBenchKernel, SaysThatABuildHasNoGpuKernels) {
  const Outcome outcome = RunGdnBench("kernel --backend=gpu --filter decode 2>&1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("no GPU kernels"));
  EXPECT_THAT(outcome.out, HasSubstr("--backend=cpu"));
  EXPECT_EQ(RunGdnBench("kernel --backend=host --filter decode 2>&1").exit_code, 1);
}

TEST(GdnBenchDrift, ComparesRoundedProductsWithExactOnes) {
  for (const auto& [program, math, weights] : {std::tuple("gdn_bench_host", "half", std::vector{"BF16", "F32"}),
                                               std::tuple("gdn_bench", "int8", std::vector{"Q8_0", "Q4_K"})}) {
    const Json json = RunForJson(program, std::string("drift --drift-tokens=2 --json --math=") + math);
    ASSERT_EQ(json.size(), 2u) << json;
    for (size_t i = 0; i < 2; ++i) {
      const Json& row = json[i];
      EXPECT_EQ(row.at("weights"), weights[i]);
      EXPECT_EQ(row.at("tokens"), 2);
      for (const char* key : {"output_error", "state_error"}) {
        EXPECT_GT(row.at(key).get<double>(), 1e-5) << row;
        EXPECT_LT(row.at(key).get<double>(), std::string(math) == "half" ? 2e-3 : 3e-2) << row;
      }
    }
  }
  const Outcome outcome = RunGdnBench("drift --math=half --drift-tokens=2 2>&1");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.out, HasSubstr("no GPU kernels"));
}
#endif

// The p50 and p99 of a server, in order.
void ExpectServer(const Json& server) {
  EXPECT_GT(server.at("calls").get<int64_t>(), 0);
  double before = 0;
  for (const char* key : {"p50_us", "p90_us", "p99_us", "p99_9_us", "max_us"}) {
    EXPECT_GT(server.at(key).get<double>(), 0) << key;
    EXPECT_GE(server.at(key).get<double>(), before) << key;
    before = server.at(key).get<double>();
  }
  EXPECT_GT(server.at("calls_per_s").at("median").get<double>(), 0);
  EXPECT_GT(server.at("tokens_per_s").get<double>(), 0);
  EXPECT_GE(server.at("late").get<int64_t>(), 0);
}

std::map<std::string, Json> RatiosOf(const Json& result) {
  std::map<std::string, Json> ratios;
  for (const Json& ratio : result.at("ratios")) ratios[ratio.at("name")] = ratio;
  return ratios;
}

TEST(GdnBenchServe, JsonHoldsWhatTheDocumentationSays) {
  const Json json = RunForJson("gdn_bench",
                               "serve --sessions 2 --tokens 3 --hidden 64 --model-layers 2 --calls 8 --concurrency 1,2 "
                               "--request_ids --echo both --json");
  EXPECT_EQ(json.at("command"), "serve");
  EXPECT_EQ(json.at("suite"), "");
  EXPECT_EQ(json.at("backend").at("name"), "null");
  EXPECT_EQ(json.at("transport"), "tcp");
  EXPECT_EQ(json.at("layers"), 2);
  EXPECT_EQ(json.at("hidden"), 64);
  EXPECT_EQ(json.at("dtype"), "BF16");
  const int64_t payload = 2 * 3 * 64 * 2;
  ASSERT_EQ(json.at("results").size(), 2u);
  for (size_t i = 0; i < 2; ++i) {
    const Json& result = json.at("results")[i];
    SCOPED_TRACE(result.dump());
    EXPECT_EQ(result.at("clients"), i + 1);
    EXPECT_EQ(result.at("call"), "decode");
    EXPECT_EQ(result.at("api"), "unary");
    EXPECT_EQ(result.at("sessions"), 2);
    EXPECT_EQ(result.at("tokens"), 3);
    EXPECT_EQ(result.at("request_ids"), true);
    EXPECT_GT(result.at("request_bytes").get<int64_t>(), payload);
    EXPECT_GT(result.at("response_bytes").get<int64_t>(), payload);
    EXPECT_EQ(result.at("kernels").at("call_us"), 0);
    for (const char* server : {"gdn", "echo", "raw_echo"}) {
      ExpectServer(result.at("servers").at(server));
      EXPECT_GE(result.at("servers").at(server).at("calls").get<int64_t>(), 8);
    }
    const auto ratios = RatiosOf(result);
    EXPECT_EQ(ratios.size(), 4u);
    for (const char* name : {"p50_over_echo", "p99_over_echo", "rate_over_echo", "p50_over_raw_echo"}) {
      const Json& ratio = ratios.at(name);
      EXPECT_GT(ratio.at("ratio").at("median").get<double>(), 0) << name;
      EXPECT_LE(ratio.at("ratio").at("min").get<double>(), ratio.at("ratio").at("median").get<double>()) << name;
      EXPECT_GT(ratio.at("ours").get<double>(), 0) << name;
      EXPECT_GT(ratio.at("over").get<double>(), 0) << name;
      EXPECT_FALSE(ratio.contains("goal")) << name;
    }
  }
}

TEST(GdnBenchServe, ComparesDecodesBesideAPrefillAndWithoutIt) {
  const Json json = RunForJson("gdn_bench",
                               "serve --api stream --transport unix --sessions 1 --hidden 64 --calls 1 --concurrency 1 "
                               "--beside prefill:5000 --json");
  EXPECT_EQ(json.at("transport"), "unix");
  const Json& result = json.at("results").at(0);
  EXPECT_EQ(result.at("api"), "stream");
  EXPECT_EQ(result.at("beside_tokens"), 5000);
  for (const char* server : {"gdn", "echo", "gdn_beside"}) ExpectServer(result.at("servers").at(server));
  EXPECT_EQ(RatiosOf(result).count("p99_beside_less_segment_over_without"), 1u);
}

TEST(GdnBenchServe, ComparesCompletionQueuesWithTheCallbackApi) {
  for (const std::string call : {"--call decode", "--call prefill --tokens 5"}) {
    for (const std::string api : {"unary", "stream --transport unix"}) {
      const Json json = RunForJson("gdn_bench", "serve --echo queue --hidden 64 --calls 40 --concurrency 3 " + call +
                                                    " --api " + api + " --json");
      const Json& result = json.at("results").at(0);
      SCOPED_TRACE(result.dump());
      EXPECT_FALSE(result.at("servers").contains("echo"));
      for (const char* server : {"gdn", "raw_echo", "queue_echo", "queues_echo"}) {
        ExpectServer(result.at("servers").at(server));
        EXPECT_GE(result.at("servers").at(server).at("calls").get<int64_t>(), 40);
      }
      const auto ratios = RatiosOf(result);
      for (const char* name : {"p50_queue_over_raw_echo", "p50_queues_over_raw_echo"}) {
        EXPECT_GT(ratios.at(name).at("ratio").at("median").get<double>(), 0) << name;
      }
    }
  }
}

TEST(GdnBenchServe, ComparesSharedMemoryWithMessages) {
  for (const std::string call : {"--call decode --sessions 3", "--call prefill --tokens 5 --request_ids"}) {
    for (const std::string api : {"unary", "stream --transport unix"}) {
      const Json json = RunForJson("gdn_bench", "serve --shared-memory --hidden 64 --calls 2 --concurrency 2 " + call +
                                                    " --api " + api + " --json");
      const Json& result = json.at("results").at(0);
      for (const char* server : {"gdn", "gdn_shared"}) ExpectServer(result.at("servers").at(server));
      EXPECT_GT(RatiosOf(result).at("p50_shared_over_messages").at("ratio").at("median").get<double>(), 0);
    }
  }
}

TEST(GdnBenchServe, ComparesARingThatSleepsWithProcessesThatWakeEachOther) {
  const std::string apart = AvailableProcessors() > 1 ? "--apart " : "";
  const std::string load = "serve --ring --sessions 1 --hidden 64 --calls 20 --json ";
  const Json json = RunForJson("gdn_bench", load + apart + "--ring-spin-us 0 --concurrency 1,2");
  EXPECT_EQ(json.at("apart"), !apart.empty());
  const Json& one = json.at("results").at(0);
  for (const char* server : {"gdn_ring", "wake_echo"}) {
    ExpectServer(one.at("servers").at(server));
    EXPECT_GE(one.at("servers").at(server).at("calls").get<int64_t>(), 20);
  }
  EXPECT_GT(RatiosOf(one).at("p50_ring_over_wake_echo").at("ratio").at("median").get<double>(), 0);
  EXPECT_FALSE(json.at("results").at(1).at("servers").contains("wake_echo")) << "it has one client";
  const Json spins = RunForJson("gdn_bench", load + "--concurrency 1");
  EXPECT_FALSE(spins.at("results").at(0).at("servers").contains("wake_echo"));
}

TEST(GdnBenchServe, SendsCallsWhenTheyAreDue) {
  for (const std::string arrivals : {"even", "poisson"}) {
    const Json json = RunForJson("gdn_bench",
                                 "serve --hidden 64 --calls 1 --concurrency 2 --rate 100 --in-flight 3 "
                                 "--arrivals " +
                                     arrivals + " --json");
    EXPECT_EQ(json.at("rate"), 100);
    EXPECT_EQ(json.at("arrivals"), arrivals);
    EXPECT_EQ(json.at("in_flight"), 3);
    for (const char* server : {"gdn", "echo"}) {
      ExpectServer(json.at("results").at(0).at("servers").at(server));
      EXPECT_EQ(json.at("results").at(0).at("servers").at(server).at("calls"), 25);  // a quarter of a second
    }
  }
}

TEST(GdnBenchServe, PrefillsOnABackendThatComputes) {
  const Json json =
      RunForJson("gdn_bench",
                 "serve --backend cpu --model-layers 1 --call prefill --api stream --tokens 40 --hidden 64 "
                 "--dtype F32 --calls 1 --concurrency 1 --echo raw --json");
  EXPECT_EQ(json.at("backend").at("name"), "cpu");
  const Json& result = json.at("results").at(0);
  EXPECT_EQ(result.at("call"), "prefill");
  EXPECT_EQ(result.at("tokens"), 40);
  EXPECT_FALSE(result.contains("kernels")) << "there is no case of these dimensions";
  for (const char* server : {"gdn", "raw_echo"}) ExpectServer(result.at("servers").at(server));
  EXPECT_EQ(RatiosOf(result).size(), 1u);
}

TEST(GdnBenchServe, ASuiteReportsItsGoals) {
  const Json json = RunForJson("gdn_bench", "serve --suite host --hidden 64 --calls 1 --json");
  EXPECT_EQ(json.at("suite"), "host");
  EXPECT_EQ(json.at("results").size(), 12u);
  for (const Json& result : json.at("results")) {
    const auto ratios = RatiosOf(result);
    for (const auto& [name, goal] : {std::pair("p50_over_echo", 1.15), std::pair("p99_over_echo", 1.25)}) {
      EXPECT_EQ(ratios.at(name).at("goal"), goal);
      EXPECT_EQ(ratios.at(name).at("met"), ratios.at(name).at("ratio").at("median").get<double>() <= goal);
    }
    EXPECT_EQ(ratios.count("p50_over_raw_echo"), 1u);
    EXPECT_EQ(ratios.count("p50_shared_over_messages"), result.at("sessions") == 32 ? 1u : 0u);
  }
}

// The rows of the suite `step`, on a backend that computes and on one that does not.
TEST(GdnBenchServe, ComparesStepsWithSeparateCalls) {
  for (const std::string flags : {"--backend cpu --threads 2 --model-layers 1", "--backend null --model-layers 2"}) {
    const Json json =
        RunForJson("gdn_bench", "serve --suite step --hidden 64 --calls 1 --time-limit 1 " + flags + " --json");
    EXPECT_EQ(json.at("suite"), "step");
    ASSERT_EQ(json.at("results").size(), 6u);
    for (size_t i = 0; i < 6; ++i) {
      const Json& result = json.at("results")[i];
      SCOPED_TRACE(result.dump());
      EXPECT_EQ(result.at("call"), "step");
      EXPECT_EQ(result.at("sessions"), 32);
      EXPECT_EQ(result.at("request_ids"), i >= 3);
      const Json& rows = result.at("rows");
      const int64_t drafts = i % 3 == 2 ? 4 : 0, prefills = i % 3 == 0 ? 0 : 1;
      EXPECT_EQ(rows.at("drafts"), drafts);
      EXPECT_EQ(rows.at("decodes"), 32 - drafts - prefills);
      EXPECT_EQ(rows.at("draft_tokens"), drafts);
      EXPECT_EQ(rows.at("prefill_tokens"), 512 * prefills);
      const int64_t tokens = 32 - drafts - prefills + 4 * drafts + 512 * prefills;
      EXPECT_GT(result.at("request_bytes").get<int64_t>(), tokens * 64 * 2);
      EXPECT_GT(result.at("response_bytes").get<int64_t>(), tokens * 64 * 2);
      EXPECT_EQ(result.at("servers").size(), 2u);
      for (const char* server : {"gdn", "gdn_separate"}) ExpectServer(result.at("servers").at(server));
      const auto ratios = RatiosOf(result);
      ASSERT_EQ(ratios.size(), 1u);
      const Json& ratio = ratios.at("p50_step_over_separate");
      EXPECT_EQ(ratio.at("goal"), prefills > 0 ? 0.85 : 1.0);
      EXPECT_EQ(ratio.at("met"), ratio.at("ratio").at("median").get<double>() <= ratio.at("goal").get<double>());
      EXPECT_GT(ratio.at("ours").get<double>(), 0);
      EXPECT_GT(ratio.at("over").get<double>(), 0);
    }
  }
}

TEST(GdnBenchSchedule, JsonHoldsWhatTheDocumentationSays) {
  const Json json = RunForJson("gdn_bench", "schedule --seconds=0.5 --json");
  EXPECT_EQ(json.at("command"), "schedule");
  std::map<std::string, Json> cases;
  for (const Json& c : json.at("cases")) cases[c.at("name")] = c;
  for (const auto& [name, c] : cases) {
    EXPECT_EQ(c.at("seconds"), 0.5) << name;
    EXPECT_GT(c.at("busy").get<double>(), 0.9) << name;
    EXPECT_EQ(c.at("rows").size(), 10u) << name;
    EXPECT_GT(c.at("decision_p99_us").get<double>(), 0) << name;
    double share = 0;
    for (const Json& load : c.at("loads")) share += load.at("share").get<double>();
    EXPECT_NEAR(share, 1, 1e-9) << name;
  }
  EXPECT_EQ(cases.at("mixed").at("loads").size(), 2u);
  // Simulated time: the same on every machine.
  const Json& weights = cases.at("weights").at("loads");
  EXPECT_NEAR(weights[1].at("share").get<double>() / weights[0].at("share").get<double>(), 2, 0.4);
  EXPECT_LT(cases.at("layers beside a prefill").at("loads")[0].at("wait_max_ms").get<double>(), 20)
      << "a decode waits for one segment, whatever the number of layers that decode";
}

TEST(GdnBenchPrefix, JsonHoldsWhatTheDocumentationSays) {
  const Json json =
      RunForJson("gdn_bench", "prefix --prefix-tokens 1024 --prefix-layers 1 --prefix-rounds 2 --threads 1 --json");
  EXPECT_EQ(json.at("command"), "prefix");
  EXPECT_EQ(json.at("tokens"), 1024);
  EXPECT_EQ(json.at("layers"), 1);
  EXPECT_EQ(json.at("equal_bits"), true);
  EXPECT_GT(json.at("state_bytes").get<int64_t>(), int64_t{2} << 20);
  for (const char* field : {"unknown_ms", "known_ms", "create_ms", "keep_ms", "ratio"})
    ExpectSummary(json.at(field), 2);
}

TEST(GdnBenchState, JsonHoldsWhatTheDocumentationSays) {
  const Json json =
      RunForJson("gdn_bench", "state --layers 2 --repeat 2 --forks 3 --pause_phases 1 --pause_calls 4 --json");
  EXPECT_EQ(json.at("command"), "state");
  EXPECT_EQ(json.at("layers"), 2);
  EXPECT_GT(json.at("state_bytes").get<int64_t>(), 2 * (int64_t{2} << 20));
  std::map<std::string, std::string> measures;
  for (const Json& rate : json.at("rates")) {
    SCOPED_TRACE(rate.dump());
    measures[rate.at("name")] = rate.at("measure");
    EXPECT_GT(rate.at("bytes").get<int64_t>(), int64_t{2} << 20);
    for (const char* field : {"gb_s", "measure_gb_s", "ratio"}) ExpectSummary(rate.at(field), 2);
  }
  EXPECT_EQ(measures, (std::map<std::string, std::string>{{"export", "grpc_stream"},
                                                          {"import", "grpc_stream"},
                                                          {"spill_host", "memcpy"},
                                                          {"return_host", "memcpy"},
                                                          {"spill_disk", "dd_fsync"},
                                                          {"return_disk", "dd_read"}}));
  ASSERT_EQ(json.at("forks").size(), 2u);
  for (const Json& fork : json.at("forks")) {
    for (const char* field : {"time_us", "one_layer_us", "ratio"}) ExpectSummary(fork.at(field), 3);
  }
  ASSERT_EQ(json.at("pauses").size(), 2u);
  for (const Json& pause : json.at("pauses")) {
    EXPECT_EQ(pause.at("calls"), 4);
    EXPECT_GT(pause.at("checkpoints").get<int64_t>(), 0);
    EXPECT_GT(pause.at("checkpoint_ms").get<double>(), 0);
    EXPECT_GT(pause.at("ratio").at("p99").get<double>(), 0);
  }
}

TEST(GdnBench, SaysWhatIsWrongWithItsCommandLine) {
  const Outcome no_command = RunGdnBench("2>&1");
  EXPECT_EQ(no_command.exit_code, 2);
  EXPECT_THAT(no_command.out, HasSubstr("kernel"));
  EXPECT_EQ(RunGdnBench("colonel 2>&1").exit_code, 2);
  const Outcome no_case = RunGdnBench("kernel --filter nothing-like-it 2>&1");
  EXPECT_EQ(no_case.exit_code, 1);
  EXPECT_THAT(no_case.out, HasSubstr("--list"));
  const Outcome no_server = RunGdnBench("serve --hidden 64 --server /no/such/gdn_server 2>&1");
  EXPECT_EQ(no_server.exit_code, 1);
  EXPECT_THAT(no_server.out, HasSubstr("/no/such/gdn_server"));
  for (const char* flag : {"--concurrency four", "--call step", "--api rest", "--transport pigeon", "--echo none",
                           "--arrivals never", "--beside prefill", "--beside decode:5", "--dtype F64"}) {
    EXPECT_EQ(RunGdnBench(std::string("serve ") + flag + " 2>&1").exit_code, 2) << flag;
  }
  for (const char* flag : {"--sessions 0", "--suite all", "--suite host --rate 5", "--concurrency 1000"}) {
    EXPECT_EQ(RunGdnBench(std::string("serve ") + flag + " 2>&1").exit_code, 1) << flag;
  }
  EXPECT_EQ(RunGdnBench("schedule --seconds 0 2>&1").exit_code, 2);
  EXPECT_EQ(RunGdnBench("echo_server --port_file p --queue_threads -1 2>&1").exit_code, 2);
  for (const char* flags : {"", "--wake_fds 5", "--wake_fds 5,six"}) {
    EXPECT_EQ(RunGdnBench(std::string("wake_echo ") + flags + " 2>&1").exit_code, 2) << flags;
  }
  const Outcome no_eventfd = RunGdnBench("wake_echo --wake_fds 0,1 < /dev/null 2>&1");
  EXPECT_EQ(no_eventfd.exit_code, 1);
  EXPECT_THAT(no_eventfd.out, HasSubstr("not an eventfd"));
}

TEST(GdnBenchNeighbour, EndsWhenItIsToldToBesideAServerThatHangs) {
  const int server = socket(AF_INET, SOCK_STREAM, 0);  // takes connections and never answers
  ASSERT_GE(server, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = 0, .sin_addr = {htonl(INADDR_LOOPBACK)}, .sin_zero = {}};
  socklen_t bytes = sizeof(address);
  ASSERT_EQ(bind(server, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  ASSERT_EQ(listen(server, 8), 0);
  ASSERT_EQ(getsockname(server, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  const std::string flags = "neighbour --listen=127.0.0.1:" + std::to_string(ntohs(address.sin_port)) +
                            " --port_file=/nowhere --beside=prefill:100 --time_limit=0.2 2>&1";
  const Outcome outcome = RunGdnBench(flags + " & pid=$!; sleep 1; kill $pid; wait $pid");
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;  // the signal's, if it came before the program was ready for it
  close(server);
}

}  // namespace
}  // namespace gdn::bench_run_test
