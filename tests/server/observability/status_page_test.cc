#include "server/observability/status_page.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/observability/html.h"
#include "server/observability/plot.h"

namespace gdn::status_page_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kEvil[] = "<script>alert('\"&</style><img src=x onerror=alert(1)>";

TEST(Html, EscapesAllThatMeansSomething) {
  EXPECT_EQ(EscapeHtml("a<b>&\"'c"), "a&lt;b&gt;&amp;&quot;&#39;c");
  EXPECT_EQ(EscapeHtml("größe €"), "größe €");
  EXPECT_EQ(EscapeHtml(std::string("a\0b\x7f\n", 5)),
            "a\xEF\xBF\xBD"
            "b\xEF\xBF\xBD\xEF\xBF\xBD");
  for (const char* const broken : {"\xC3", "\x80", "\xC0\x80", "\xED\xA0\x80", "\xF5\x80\x80\x80", "\xE2\x82"}) {
    EXPECT_EQ(EscapeHtml(broken).substr(0, 3), "\xEF\xBF\xBD");
  }
  EXPECT_EQ(EscapeHtml("äöü<x", 4), "äöü&lt;…");
  EXPECT_EQ(EscapeHtml("abcd", 4), "abcd");
}

TEST(Html, ShowsNumbersAsPeopleReadThem) {
  EXPECT_EQ(ShowBytes(0), "0 B");
  EXPECT_EQ(ShowBytes(1023), "1023 B");
  EXPECT_EQ(ShowBytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(ShowBytes(int64_t{1} << 62), "4096 PiB");
  EXPECT_EQ(ShowNumber(7), "7");
  EXPECT_EQ(ShowNumber(12345), "12.3 k");
  EXPECT_EQ(ShowNumber(0.5), "0.50");
  EXPECT_EQ(ShowDuration(absl::Microseconds(35)), "35.0 µs");
  EXPECT_EQ(ShowDuration(absl::Milliseconds(4)), "4.00 ms");
  EXPECT_EQ(ShowDuration(absl::Minutes(125)), "2 h 5 min");
  EXPECT_EQ(ShowDuration(absl::Hours(76)), "3 d 4 h");
}

TEST(Plot, LeavesGapsAndEndsAtARoundNumber) {
  const std::string html = RenderPlot(
      {.title = "T", .unit = "ms", .series = {{.name = "a", .values = {1.0, 13.0, std::nullopt, 5.0}}}, .seconds = 10});
  EXPECT_THAT(html, HasSubstr("d=\"M6 95.0h0L7 35.0M9 75.0h0\""));
  EXPECT_THAT(html, HasSubstr(">20</span>"));
  EXPECT_THAT(html, HasSubstr("data-values=\"1,13,,5\""));
  EXPECT_THAT(html, HasSubstr("aria-label=\"T, ms: a now 5, axis to 20\""));
  EXPECT_THAT(RenderPlot({.title = "T", .unit = "", .series = {{.name = "a", .values = {}}}}), HasSubstr("now –"));
}

// One call of 2 s among calls of 0.5 ms: on a plain axis all others lay at its bottom.
TEST(Plot, OfDecadesKeepsSmallValuesReadableBesideALargeOne) {
  const Plot::Series series{.name = "p99", .values = {0.5, 2000.0, 0.0}};
  const std::string html =
      RenderPlot({.title = "T", .unit = "ms", .series = {series}, .seconds = 3, .by_decades = true});
  EXPECT_THAT(html, HasSubstr("d=\"M0 86.0h0L1 14.0L2 100.0\""));
  for (const char* const tick : {">10.0 k<", ">1000<", ">100<", ">10<", ">1<", ">0.10<"})
    EXPECT_THAT(html, HasSubstr(tick));
}

StatusPage Evil() {
  StatusPage page{.version = kEvil, .backend = kEvil, .device = kEvil, .numerics_id = kEvil, .trouble = kEvil};
  page.now = absl::UnixEpoch();
  page.addresses = {kEvil};
  page.models = {{.name = kEvil, .family = kEvil, .dims = kEvil, .weights = kEvil, .layers = 1}};
  page.tiers = {{.name = kEvil, .used_bytes = 3, .limit_bytes = 2, .sessions = 1, .problem = kEvil}};
  page.seconds = {{.decode_tokens = 1, .rows_per_launch = 1.5}};
  page.traces = true;
  page.calls = {{.method = kEvil,
                 .session = kEvil,
                 .principal = kEvil,
                 .trace_id = kEvil,
                 .rows = 2,
                 .when = absl::UnixEpoch(),
                 .duration = absl::Milliseconds(2),
                 .status = kEvil,
                 .stages = {{kEvil, absl::Milliseconds(1)}, {"queue", absl::Milliseconds(1)}}}};
  page.holders = {{.name = kEvil, .state_bytes = 5}};
  page.more_holders = 3;
  return page;
}

TEST(StatusPage, EscapesWhateverComesFromOutside) {
  const std::string html = RenderStatusPage(Evil());
  EXPECT_EQ(html.find("<script"), html.rfind("<script"));  // its own alone
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("alert('")));
  size_t ends = 0;
  for (size_t at = html.find("</style>"); at != std::string::npos; at = html.find("</style>", at + 1)) ++ends;
  EXPECT_EQ(ends, 1u);
  EXPECT_THAT(html, HasSubstr("&lt;script&gt;"));
}

TEST(StatusPage, NeedsNothingFromElsewhere) {
  for (const StatusPage& page : {StatusPage(), Evil()}) {
    const std::string html = RenderStatusPage(page);
    for (const char* const outside :
         {"http:", "https:", "src=\"/", "src=\"//", "url(", "@import", "<link", "<iframe", "<form"}) {
      EXPECT_THAT(html, Not(HasSubstr(outside)));
    }
    EXPECT_THAT(html, HasSubstr("name=\"viewport\""));
    EXPECT_THAT(html, HasSubstr("prefers-color-scheme:dark"));
    EXPECT_THAT(html, HasSubstr("lang=\"en\""));
  }
}

TEST(StatusPage, SaysHowToSeeCallsWhereNoneIsTraced) {
  EXPECT_THAT(RenderStatusPage(StatusPage()), HasSubstr("gdnctl trace --keep"));
  StatusPage traced;
  traced.traces = true;
  EXPECT_THAT(RenderStatusPage(traced), HasSubstr("No traced call has ended yet"));
}

}  // namespace
}  // namespace gdn::status_page_test
