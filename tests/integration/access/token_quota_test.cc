// Quotas of tokens a second, with a clock that a test sets.
#include <gtest/gtest.h>

#include <atomic>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "base/threads/steady_clock.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::token_quota_test {
namespace {

class StoppedClock final : public SteadyClock {
 public:
  SteadyTime Now() const override { return SteadyTime::FromNanos(nanos_.load()); }
  void Advance(absl::Duration by) { nanos_ += absl::ToInt64Nanoseconds(by); }

 private:
  std::atomic<int64_t> nanos_{1};
};

class TokenQuota : public ::testing::Test {
 protected:
  GdnServerOptions Options(int64_t per_second, int64_t burst) {
    GdnServerOptions options{.rate_clock = &clock_};
    options.quotas.each[Quota::kTokensPerSecond] = per_second;
    options.quotas.each[Quota::kTokenBurst] = burst;
    return options;
  }

  StoppedClock clock_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
};

double RetrySeconds(const grpc::Status& status) {
  google::rpc::Status details;
  google::rpc::RetryInfo retry;
  if (!details.ParseFromString(status.error_details())) return -1;
  for (const auto& detail : details.details()) {
    if (detail.UnpackTo(&retry))
      return static_cast<double>(retry.retry_delay().seconds()) + 1e-9 * retry.retry_delay().nanos();
  }
  return -1;
}

TEST_F(TokenQuota, StepsOverTheRateAreRefusedUntilTheTimeThatTheyAreTold) {
  TestServer server(Options(/*per_second=*/2, /*burst=*/10));
  const Caller caller(server);
  for (const char* id : {"a", "b"}) ASSERT_TRUE(feed_.Create(caller, id).ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 4})).ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("b", {0, 4})).ok());
  const std::string before = caller.State("a") + caller.State("b");

  const auto decode = feed_.Decode({"a", "b"}, {4, 3});  // 6 tokens, and 2 are left
  const auto refused = caller.Decode(decode);
  EXPECT_TRUE(
      RefusedAs(refused, "QUOTA_EXCEEDED",
                {{"quota", "tokens-per-second"}, {"of", "caller"}, {"needed", "6"}, {"used", "8"}, {"limit", "2"}}));
  EXPECT_EQ(RetrySeconds(refused.status), 2);
  EXPECT_EQ(caller.State("a") + caller.State("b"), before);
  EXPECT_EQ(server.server().ledger().refusals(Quota::kTokensPerSecond), 1);

  clock_.Advance(absl::Seconds(2) - absl::Nanoseconds(1));
  EXPECT_TRUE(RefusedAs(caller.Decode(decode), "QUOTA_EXCEEDED"));
  clock_.Advance(absl::Nanoseconds(1));
  EXPECT_TRUE(caller.Decode(decode).ok());
  EXPECT_TRUE(RefusedAs(caller.Prefill(feed_.Prefill("a", {7, 1})), "QUOTA_EXCEEDED", {{"used", "10"}}));
}

TEST_F(TokenQuota, ACallOfMoreThanTheBurstIsToldThatWaitingDoesNotHelp) {
  TestServer server(Options(1000, 10));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  const auto refused = caller.Prefill(feed_.Prefill("a", {0, 11}));
  EXPECT_TRUE(RefusedAs(refused, "QUOTA_EXCEEDED", {{"quota", "token-burst"}, {"needed", "11"}, {"limit", "10"}}));
  EXPECT_EQ(RetrySeconds(refused.status), -1);
  EXPECT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 10})).ok()) << "nothing was taken";
}

TEST_F(TokenQuota, WhatIsRefusedForSomethingElseCostsNothing) {
  TestServer server(Options(1, 5));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  ASSERT_TRUE(feed_.Create(caller, "b").ok());
  for (int i = 0; i < 10; ++i) {
    auto elsewhere = feed_.Prefill("a", {0, 4});
    elsewhere.set_expected_token_count(99);
    EXPECT_TRUE(RefusedAs(caller.Prefill(elsewhere), "TOKEN_COUNT_MISMATCH"));
  }
  auto partly = feed_.Decode({"a", "b"}, {0, 2});
  partly.set_partial_ok(true);
  partly.add_expected_token_counts(7);
  partly.add_expected_token_counts(0);
  ASSERT_REPLY(const auto reply, caller.Decode(partly));
  EXPECT_NE(reply.row_statuses(0).code(), 0);
  EXPECT_EQ(reply.row_statuses(1).code(), 0);
  EXPECT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 3})).ok()) << "5, less the 2 of b";
  EXPECT_TRUE(RefusedAs(caller.Prefill(feed_.Prefill("a", {3, 1})), "QUOTA_EXCEEDED"));
}

TEST_F(TokenQuota, AStepCountsTheTokensOfEveryRowAndNoneOfItsAcceptances) {
  TestServer server(Options(/*per_second=*/1, /*burst=*/20));
  const Caller caller(server);
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(feed_.Create(caller, id).ok());
  const FeedPart decode = {.id = "a", .range = {0, 2}};
  const FeedPart draft = {.id = "b", .range = {0, 3}, .kind = v1::STEP_KIND_DRAFT};
  const FeedPart prefill = {.id = "c", .range = {0, 9}, .kind = v1::STEP_KIND_PREFILL};
  ASSERT_TRUE(caller.Step(feed_.Step({decode, draft, prefill})).ok());  // 14
  FeedPart accepts = {.id = "b", .range = {3, 1}};
  accepts.accept = 3;
  EXPECT_TRUE(RefusedAs(caller.Step(feed_.Step({accepts, prefill})), "QUOTA_EXCEEDED",
                        {{"quota", "tokens-per-second"}, {"needed", "10"}, {"used", "14"}}));
  EXPECT_EQ(caller.TokenCount("b", 0), 0) << "its draft still waits";
  ASSERT_TRUE(caller.Step(feed_.Step({accepts})).ok());  // 15
  // A row that fails gives its tokens back.
  v1::StepRequest partly = feed_.Step({{.id = "a", .range = {2, 2}, .expected = 7}, {.id = "b", .range = {4, 2}}});
  partly.set_partial_ok(true);
  ASSERT_REPLY(const auto reply, caller.Step(partly));  // 17
  EXPECT_NE(reply.row_statuses(0).code(), 0);
  EXPECT_EQ(reply.row_statuses(1).code(), 0);
  EXPECT_TRUE(RefusedAs(caller.Step(feed_.Step({{.id = "a", .range = {2, 4}}})), "QUOTA_EXCEEDED", {{"used", "17"}}));
  EXPECT_TRUE(caller.Step(feed_.Step({{.id = "a", .range = {2, 3}}})).ok());
  EXPECT_TRUE(RefusedAs(caller.Step(feed_.Step({{.id = "c", .range = {0, 21}, .kind = v1::STEP_KIND_PREFILL}})),
                        "QUOTA_EXCEEDED", {{"quota", "token-burst"}, {"needed", "21"}}));
}

TEST_F(TokenQuota, AStreamGoesOnBehindARefusedStep) {
  TestServer server(Options(1, 4));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 3})).ok());
  const auto context = caller.NewContext();
  const auto stream = server.stub().StreamDecode(context.get());
  v1::StreamDecodeResponse reply;
  ASSERT_TRUE(stream->Write(StreamStep(feed_.Decode({"a"}, {3, 1}))) && stream->Read(&reply));
  EXPECT_TRUE(reply.has_result());
  ASSERT_TRUE(stream->Write(StreamStep(feed_.Decode({"a"}, {4, 1}))) && stream->Read(&reply));
  EXPECT_EQ(ErrorInfoOf(reply.status()).reason(), "QUOTA_EXCEEDED");
  clock_.Advance(absl::Seconds(1));
  ASSERT_TRUE(stream->Write(StreamStep(feed_.Decode({"a"}, {4, 1}))) && stream->Read(&reply));
  EXPECT_TRUE(reply.has_result());
  stream->WritesDone();
  EXPECT_TRUE(stream->Finish().ok());
}

TEST_F(TokenQuota, ALimitThatComesLaterHoldsFromThenOnAndGoesAgain) {
  TestServer server(Options(kNoQuota, kNoQuota));
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  ASSERT_TRUE(caller.Prefill(feed_.Prefill("a", {0, 100})).ok());
  QuotaSettings quotas;
  quotas.each[Quota::kTokensPerSecond] = 3;
  server.server().SetQuotas(quotas);
  EXPECT_TRUE(caller.Prefill(feed_.Prefill("a", {100, 3})).ok());
  EXPECT_TRUE(RefusedAs(caller.Prefill(feed_.Prefill("a", {103, 1})), "QUOTA_EXCEEDED"));
  server.server().SetQuotas({});
  EXPECT_TRUE(caller.Prefill(feed_.Prefill("a", {103, 50})).ok());
}

TEST_F(TokenQuota, TogetherClientsGetTheirRateAndOneAtItsLimitHindersNobody) {
  // SHA-256 of "Bearer 1" and "Bearer 2".
  const TempFolder folder;
  GdnServerOptions options{.principals = {.file = folder.path() + "/principals.json"}, .rate_clock = &clock_};
  std::ofstream(options.principals.file) << R"({"principals": [
      {"name": "greedy", "sha256": ["16c2e9a3b8c0efc5d394421c9bdfac3ff12ce2c91b8f0208e0f75b013f22cb62"]},
      {"name": "modest", "sha256": ["cfcead19ff9b06ed6215a7c39808b52c03f27782522bc6070611c914f14a6604"]}]})";
  constexpr int64_t kBurst = 30, kRate = 10;
  constexpr int kClients = 3, kCalls = 20;
  options.quotas.principals["greedy"].limits[Quota::kTokensPerSecond] = kRate;
  options.quotas.principals["greedy"].limits[Quota::kTokenBurst] = kBurst;
  TestServer server(std::move(options));
  const Caller greedy(server, "Bearer 1"), modest(server, "Bearer 2");
  for (const std::string& id : SessionIds(kClients)) ASSERT_TRUE(feed_.Create(greedy, id).ok());
  ASSERT_TRUE(feed_.Create(modest, "m").ok());

  std::atomic<int64_t> took{0};
  std::atomic<int> calls{0};
  std::vector<std::thread> clients;
  for (const std::string& id : SessionIds(kClients)) {
    clients.emplace_back([&, id] {
      int64_t next = 0;
      for (int i = 0; i < kCalls; ++i) {
        if (++calls % 6 == 0) clock_.Advance(absl::Milliseconds(500));  // 5 s in all
        const auto outcome = greedy.Prefill(feed_.Prefill(id, {next, 2}));
        if (outcome.ok()) {
          took += 2;
          next += 2;
        } else {
          EXPECT_TRUE(RefusedAs(outcome, "QUOTA_EXCEEDED", {{"quota", "tokens-per-second"}}));
        }
      }
    });
  }
  for (int i = 0; i < 2 * kCalls; ++i) {
    const auto outcome = modest.Prefill(feed_.Prefill("m", {5 * i, 5}));
    EXPECT_TRUE(outcome.ok()) << outcome.status.error_message();
  }
  for (std::thread& client : clients) client.join();
  EXPECT_LE(took, kBurst + kRate * 5);
  EXPECT_GT(took, kBurst / 2);
  EXPECT_GT(server.server().ledger().refusals(Quota::kTokensPerSecond), 0);
}

}  // namespace
}  // namespace gdn::token_quota_test
