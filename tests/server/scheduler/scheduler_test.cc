// Single decisions, and properties that hold of all of them under random loads.
#include "server/scheduler/scheduler.h"

#include <deque>
#include <map>
#include <random>
#include <set>

#include "gtest/gtest.h"

namespace gdn::scheduler_test {
namespace {

// A scheduler with steps of its own and plain costs: a decode of n rows 10 + n us, a prefill of n tokens 10 + n us.
class SchedulerTest : public ::testing::Test {
 protected:
  static SchedulerOptions Options() {
    SchedulerOptions options;
    options.max_rows = 8;
    options.segment_us = options.busy_segment_us = 1034;  // 1024 tokens
    options.decode_cost = options.prefill_cost = LaunchCost(10, 1);
    return options;
  }

  SchedulerTest() { scheduler_.SetSpares(this, 4); }

  ScheduledStep& Make(const std::string& principal, int session, uint64_t group) {
    ScheduledStep& step = steps_.emplace_back();
    step.principal = principal;
    step.turn = &turns_[{principal, session}];
    step.group = group;
    step.pool = this;
    return step;
  }
  ScheduledStep& Decode(const std::string& principal, int session, uint64_t group, int32_t rows = 1) {
    ScheduledStep& step = Make(principal, session, group);
    step.row_count = rows;
    step.token_count = rows;
    scheduler_.Add(step);
    return step;
  }
  ScheduledStep& Prefill(const std::string& principal, int session, uint64_t group, int64_t tokens) {
    ScheduledStep& step = Make(principal, session, group);
    step.prefill = true;
    step.token_count = tokens;
    scheduler_.Add(step);
    return step;
  }
  static std::vector<ScheduledStep*> StepsOf(const Launch& launch) {
    std::vector<ScheduledStep*> steps;
    for (const Launch::Part& part : launch.parts) steps.push_back(part.step);
    return steps;
  }

  Scheduler scheduler_{Options()};
  std::deque<ScheduledStep> steps_;
  std::map<std::pair<std::string, int>, SessionTurn> turns_;
};

TEST_F(SchedulerTest, HasNothingToLaunchWhereNothingWaits) {
  EXPECT_TRUE(scheduler_.Next(true).empty());
  Prefill("a", 1, 1, 100);
  EXPECT_TRUE(scheduler_.Next(/*prefills=*/false).empty());
  EXPECT_EQ(scheduler_.waiting(), 1u);
}

TEST_F(SchedulerTest, MergesDecodesOfOneGroupOfAllPrincipals) {
  ScheduledStep& first = Decode("a", 1, 1);
  ScheduledStep& other = Decode("a", 2, 2);
  ScheduledStep& second = Decode("b", 1, 1, 3);
  const Launch launch = scheduler_.Next(true);
  EXPECT_FALSE(launch.prefill);
  EXPECT_EQ(launch.group, 1u);
  EXPECT_EQ(launch.tokens, 4);
  EXPECT_NEAR(launch.estimated_us, 14, 1e-6);
  EXPECT_EQ(StepsOf(launch), (std::vector{&first, &second}));
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&other});
  EXPECT_EQ(scheduler_.waiting(), 0u);
}

TEST_F(SchedulerTest, FillsALaunchWithWhatFits) {
  ScheduledStep& first = Decode("a", 1, 1, 6);
  ScheduledStep& large = Decode("a", 2, 1, 3);
  ScheduledStep& small = Decode("b", 1, 1, 2);
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), (std::vector{&first, &small}));
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&large});
  ScheduledStep& huge = Decode("a", 1, 1, 100);  // a step of more rows than a launch should have runs alone
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&huge});
}

TEST_F(SchedulerTest, DecodesComeBeforePrefillsThatCameFirst) {
  Prefill("a", 1, 1, 5000);
  ScheduledStep& decode = Decode("a", 2, 1);
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&decode});
  EXPECT_TRUE(scheduler_.Next(true).prefill);
}

TEST_F(SchedulerTest, AllWithoutAWeightHaveOneShareTogether) {
  scheduler_.SetWeight("listed", 1);
  double listed_us = 0, others_us = 0;
  std::map<const ScheduledStep*, std::string> whose;
  const auto wait = [&](const std::string& principal, uint64_t group) {
    whose[&Decode(principal, /*session=*/1, group)] = principal;
  };
  const auto group_of = [](int principal) { return static_cast<uint64_t>(principal + 2); };
  wait("listed", 1);  // groups of their own: nobody rides along
  for (int i = 0; i < 20; ++i) wait(std::to_string(i), group_of(i));
  for (int launches = 0; launches < 4000; ++launches) {
    const Launch launch = scheduler_.Next(true);
    ASSERT_EQ(launch.parts.size(), 1u);
    const std::string& principal = whose[launch.parts[0].step];
    (principal == "listed" ? listed_us : others_us) += launch.estimated_us;
    wait(principal, launch.group);  // every principal always has something waiting
  }
  EXPECT_NEAR(listed_us / (listed_us + others_us), 0.5, 0.05);
}

TEST_F(SchedulerTest, CutsPrefillsAtMultiplesFromTheirFirstToken) {
  Prefill("a", 1, 1, 2500);
  std::vector<std::pair<int64_t, int64_t>> segments;
  for (Launch launch = scheduler_.Next(true); !launch.empty(); launch = scheduler_.Next(true)) {
    ASSERT_EQ(launch.parts.size(), 1u);
    segments.emplace_back(launch.parts[0].first, launch.parts[0].tokens);
    EXPECT_EQ(launch.parts[0].last, segments.back().first + segments.back().second == 2500);
  }
  EXPECT_EQ(segments, (std::vector<std::pair<int64_t, int64_t>>{{0, 1024}, {1024, 1024}, {2048, 452}}));
}

TEST_F(SchedulerTest, MergesPrefillsOfOneGroup) {
  ScheduledStep& first = Prefill("a", 1, 1, 2000);
  Prefill("a", 2, 2, 2000);
  ScheduledStep& second = Prefill("b", 1, 1, 100);
  const Launch launch = scheduler_.Next(true);
  EXPECT_EQ(StepsOf(launch), (std::vector{&first, &second}));
  EXPECT_EQ(launch.parts[0].tokens, 512);
  EXPECT_FALSE(launch.parts[0].last);
  EXPECT_EQ(launch.parts[1].tokens, 100);
  EXPECT_TRUE(launch.parts[1].last);
}

TEST_F(SchedulerTest, SegmentsAreShorterWhileDecodesAreAbout) {
  SchedulerOptions options = Options();
  options.busy_segment_us = 522;  // 512 tokens
  Scheduler scheduler(options);
  scheduler.SetSpares(this, 4);
  ScheduledStep& prefill = Make("a", 0, 1);
  prefill.prefill = true;
  prefill.token_count = 1'000'000;
  scheduler.Add(prefill);
  EXPECT_EQ(scheduler.Next(/*prefills=*/true).tokens, 1024);
  scheduler.Add(Make("a", 1, 1));
  EXPECT_FALSE(scheduler.Next(/*prefills=*/true).prefill);
  for (double alone_us = 0; alone_us < kBusyUs; alone_us += 522) {
    ASSERT_EQ(scheduler.Next(/*prefills=*/true).tokens, 512) << alone_us;
  }
  EXPECT_EQ(scheduler.Next(/*prefills=*/true).tokens, 1024);
  scheduler.Remove(prefill);
  scheduler.ReleaseSpare(prefill);
}

TEST_F(SchedulerTest, ADeviceThatComputesFewTokensInThatTimeGetsEnoughOfThemForItsRate) {
  const auto tokens = [this](double token_us) {
    SchedulerOptions options;
    options.prefill_cost = LaunchCost(0, token_us);
    Scheduler scheduler(options);
    scheduler.SetSpares(this, 1);
    ScheduledStep& prefill = Make("a", 0, 1);
    prefill.prefill = true;
    prefill.token_count = 100'000;
    scheduler.Add(Make("a", 1, 1));
    EXPECT_FALSE(scheduler.Next(/*prefills=*/true).prefill);
    scheduler.Add(prefill);
    const int64_t given = scheduler.Next(/*prefills=*/true).tokens;
    scheduler.Remove(prefill);
    scheduler.ReleaseSpare(prefill);
    return given;
  };
  EXPECT_EQ(tokens(0.5), 960) << "500 us";
  EXPECT_EQ(tokens(3), 256) << "more than 500 us, for the rate";
  EXPECT_EQ(tokens(5), 192) << "1,000 us";
  EXPECT_EQ(tokens(50), 64) << "a segment has one multiple at least";
}

TEST_F(SchedulerTest, DecodesLeadUntilTheyHaveHadMore) {
  Scheduler scheduler(Options());
  scheduler.SetSpares(this, 1);
  EXPECT_FALSE(scheduler.DecodesLead());
  scheduler.Add(Make("a", 0, 1));
  EXPECT_TRUE(scheduler.DecodesLead());
  ScheduledStep& prefill = Make("b", 1, 2);
  prefill.prefill = true;
  prefill.token_count = 64;
  scheduler.Add(prefill);
  EXPECT_TRUE(scheduler.DecodesLead());
  EXPECT_FALSE(scheduler.Next(/*prefills=*/false).prefill);
  scheduler.Add(Make("a", 2, 1));
  EXPECT_FALSE(scheduler.DecodesLead()) << "the prefills have had nothing yet";
  EXPECT_TRUE(scheduler.Next(/*prefills=*/true).prefill);
  EXPECT_TRUE(scheduler.DecodesLead());
  EXPECT_FALSE(scheduler.Next(/*prefills=*/true).prefill);
  scheduler.ReleaseSpare(prefill);
}

TEST_F(SchedulerTest, PrefillsWithoutASpareWaitAndTheLastIsForWhoHasNone) {
  ScheduledStep& a1 = Prefill("a", 1, 1, 10);
  Prefill("a", 2, 2, 10);
  Prefill("a", 3, 3, 10);
  ScheduledStep& a4 = Prefill("a", 4, 4, 10);
  ScheduledStep& a5 = Prefill("a", 5, 5, 10);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(scheduler_.Next(true).empty());
  EXPECT_TRUE(scheduler_.Next(true).empty());
  ScheduledStep& b1 = Prefill("b", 1, 9, 10);
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&b1});
  EXPECT_EQ(scheduler_.waiting(), 2u);
  scheduler_.Remove(a4);
  scheduler_.ReleaseSpare(b1);
  EXPECT_TRUE(scheduler_.Next(true).empty());
  scheduler_.ReleaseSpare(a1);
  scheduler_.ReleaseSpare(a1);  // nothing to give any more
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&a5});
  EXPECT_TRUE(scheduler_.Next(true).empty());
}

TEST_F(SchedulerTest, ARemovedStepIsNotGivenOut) {
  ScheduledStep& first = Decode("a", 1, 1);
  ScheduledStep& second = Decode("a", 2, 1);
  ScheduledStep& prefill = Prefill("a", 3, 1, 3000);
  scheduler_.Remove(first);
  scheduler_.Remove(first);
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&second});
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&prefill});
  scheduler_.Remove(prefill);  // between two segments
  EXPECT_TRUE(scheduler_.Next(true).empty());
  EXPECT_EQ(scheduler_.waiting(), 0u);
}

TEST_F(SchedulerTest, ASessionThatWasServedMoreIsDueLater) {
  Decode("a", 1, 1);
  scheduler_.Next(true);
  Decode("a", 1, 1);  // served once
  ScheduledStep& other = Decode("a", 2, 2);
  EXPECT_EQ(StepsOf(scheduler_.Next(true)), std::vector{&other});
}

// Random principals, weights, groups, sizes and kinds; every step's life is followed.
class SchedulerProperties : public ::testing::TestWithParam<int> {
 protected:
  struct Client {
    ScheduledStep step;
    SessionTurn turn;
    std::string principal;
    bool prefill = false;
    bool waits = false;
    double since_us = 0;
    int64_t next = 0;
  };

  void SetUp() override {
    SchedulerOptions options;
    options.max_rows = 1 << (2 + random_() % 8);
    options.decode_cost = LaunchCost(10, 1);
    options.prefill_cost = LaunchCost(20, 0.5);
    options.ride_ahead_us = 500;
    options_ = options;
    scheduler_ = std::make_unique<Scheduler>(options);
    scheduler_->SetSpares(this, 1000);
    const int principals = 2 + static_cast<int>(random_() % 6);
    for (int p = 0; p < principals; ++p) {
      const std::string name = "p" + std::to_string(p);
      weights_[name] = static_cast<double>(1 + random_() % 4);
      scheduler_->SetWeight(name, weights_[name]);
      const uint64_t kinds = random_() % 3;  // decodes, prefills, both
      for (int c = 0; c < 40; ++c) {
        Client& client = clients_.emplace_back();
        client.principal = name;
        client.prefill = kinds == 1 || (kinds == 2 && c % 4 == 0);
      }
    }
  }

  void Call(Client& client) {
    ScheduledStep& step = client.step;
    step.principal = client.principal;
    step.turn = &client.turn;
    step.group = random_() % 5;
    step.prefill = client.prefill;
    step.row_count = 1 + static_cast<int32_t>(random_() % 4);
    step.token_count = client.prefill ? 1 + static_cast<int64_t>(random_() % 4000) : step.row_count;
    step.pool = this;
    client.waits = true;
    client.since_us = now_us_;
    client.next = 0;
    scheduler_->Add(step);
  }

  std::mt19937 random_{static_cast<uint32_t>(GetParam())};
  SchedulerOptions options_;
  std::unique_ptr<Scheduler> scheduler_;
  std::map<std::string, double> weights_;
  std::deque<Client> clients_;
  double now_us_ = 0;
};

TEST_P(SchedulerProperties, SharesBoundsAndOrderHold) {
  for (Client& client : clients_) Call(client);
  std::map<const ScheduledStep*, Client*> by_step;
  for (Client& client : clients_) by_step[&client.step] = &client;
  std::map<std::string, double> served;
  double longest_wait = 0, longest_launch = 0;
  while (now_us_ < 1e6) {
    const Launch launch = scheduler_->Next(true);
    ASSERT_FALSE(launch.empty());
    std::set<const ScheduledStep*> seen;
    int64_t rows = 0, tokens = 0;
    for (const Launch::Part& part : launch.parts) {
      Client& client = *by_step.at(part.step);
      ASSERT_TRUE(client.waits) << "given out twice";
      ASSERT_TRUE(seen.insert(part.step).second) << "twice in one launch";
      ASSERT_EQ(part.step->group, launch.group);
      ASSERT_EQ(part.step->prefill, launch.prefill);
      rows += launch.prefill ? 0 : part.step->row_count;
      tokens += part.tokens;
      if (launch.prefill) {
        ASSERT_EQ(part.first, client.next) << "a segment is missing, or comes again";
        ASSERT_TRUE(part.last || part.tokens % part.step->segment_multiple == 0);
        client.next += part.tokens;
        ASSERT_EQ(part.last, client.next == part.step->token_count);
      }
      longest_wait = std::max(longest_wait, now_us_ - client.since_us);
      client.since_us = now_us_ + launch.estimated_us;
      served[client.principal] +=
          launch.estimated_us * static_cast<double>(part.tokens) / static_cast<double>(launch.tokens);
      client.waits = !part.last;
    }
    ASSERT_EQ(tokens, launch.tokens);
    ASSERT_TRUE(rows <= options_.max_rows || launch.parts.size() == 1);
    longest_launch = std::max(longest_launch, launch.estimated_us);
    now_us_ += launch.estimated_us;
    for (const Launch::Part& part : launch.parts) {
      if (!part.last) continue;
      scheduler_->ReleaseSpare(*part.step);
      Call(*by_step.at(part.step));  // every principal always has something waiting
    }
  }
  double weights = 0, least = 1e9;
  for (const auto& [name, weight] : weights_) {
    weights += weight;
    least = std::min(least, weight);
  }
  for (const auto& [name, weight] : weights_) {
    EXPECT_NEAR(served[name] / now_us_ / (weight / weights), 1, 0.1) << name << " of weight " << weight;
  }
  // The longest wait is the time of all of a flow's own steps and of the launch that served it last, at the rate of the
  // least share, and of two launches of each flow.
  const double share = least / weights * options_.prefill_share;
  const double own = 40 * (20 + 0.5 * 1024) + longest_launch;
  EXPECT_LE(longest_wait, own / share + 2 * static_cast<double>(weights_.size()) * longest_launch);
}

INSTANTIATE_TEST_SUITE_P(Seeds, SchedulerProperties, ::testing::Range(0, 30));

}  // namespace
}  // namespace gdn::scheduler_test
