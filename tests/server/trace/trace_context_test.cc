#include "server/trace/trace_context.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::trace_context_test {
namespace {

using ::testing::MatchesRegex;

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";
constexpr char kParent[] = "b7ad6b7169203331";

std::string Header(const std::string& version = "00", const std::string& trace = kTrace,
                   const std::string& parent = kParent, const std::string& flags = "01") {
  return version + "-" + trace + "-" + parent + "-" + flags;
}

TEST(TraceContext, TakesAWholeOneInAndGivesItOnWithItsOwnSpan) {
  const auto context = ParseTraceparent(Header());
  ASSERT_TRUE(context.has_value());
  EXPECT_EQ(context->trace_id, kTrace);
  EXPECT_EQ(context->parent_id, kParent);
  EXPECT_THAT(context->span_id, MatchesRegex("[0-9a-f]+"));
  EXPECT_EQ(context->span_id.size(), 16u);
  EXPECT_NE(context->span_id, kParent);
  EXPECT_EQ(ToTraceparent(*context), "00-" + std::string(kTrace) + "-" + context->span_id + "-01");
  EXPECT_NE(ParseTraceparent(Header())->span_id, context->span_id);
}

TEST(TraceContext, IgnoresMalformedOnes) {
  for (const std::string& bad :
       {std::string(), std::string("00"), Header().substr(0, 54), Header() + "0", Header() + "-more", Header("ff"),
        Header("0G"), Header("00", std::string(32, '0')), Header("00", kTrace, std::string(16, '0')),
        Header("00", "0AF7651916CD43DD8448EB211C80319C"), Header("00", kTrace, "b7ad6b716920333x"),
        Header("00", kTrace, kParent, "zz"), Header("01") + "x", std::string(55, '-'), std::string(1 << 16, 'a'),
        std::string(55, '\0')}) {
    EXPECT_FALSE(ParseTraceparent(bad).has_value()) << bad.substr(0, 80);
  }
}

TEST(TraceContext, OfALaterVersionTakesWhatItKnows) {
  for (const std::string& later : {Header("01"), Header("cc") + "-what-the-future-will-bring"}) {
    const auto context = ParseTraceparent(later);
    ASSERT_TRUE(context.has_value()) << later;
    EXPECT_EQ(context->trace_id, kTrace);
    EXPECT_EQ(ToTraceparent(*context).substr(0, 3), "00-");
  }
}

TEST(TraceContext, IsToldInLogs) {
  EXPECT_EQ(TraceForLog(nullptr), "");
  const auto context = std::make_shared<const TraceContext>(*ParseTraceparent(Header()));
  EXPECT_EQ(TraceForLog(context), " trace_id=" + std::string(kTrace) + " span_id=" + context->span_id);
}

}  // namespace
}  // namespace gdn::trace_context_test
