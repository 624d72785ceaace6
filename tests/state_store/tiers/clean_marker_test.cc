#include "state_store/tiers/disk/clean_marker.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace gdn::clean_marker_test {
namespace {

StateKey SessionOf(std::string principal, std::string id) {
  return {.principal = std::move(principal), .id = std::move(id), .checkpoint = ""};
}

CleanMarker Sample() {
  CleanMarker marker{.redis = "0123456789abcdef"};
  marker.sessions[SessionOf("", "a")] = {.tier = "disk", .version = {.created = 5, .epoch = 2, .changes = 9}};
  marker.sessions[SessionOf("ab12", "b.~-_")] = {.tier = "redis", .version = {.created = -1, .epoch = 1, .changes = 3}};
  return marker;
}

TEST(CleanMarker, IsReadAsItWasWritten) {
  const CleanMarker marker = Sample();
  const std::optional<CleanMarker> read = CleanMarker::Parse(marker.ToText());
  ASSERT_TRUE(read.has_value());
  EXPECT_EQ(read->redis, marker.redis);
  ASSERT_EQ(read->sessions.size(), 2);
  for (const auto& [key, copy] : marker.sessions) {
    const CleanMarker::Copy* const found = read->Find(key);
    ASSERT_NE(found, nullptr);
    EXPECT_EQ(found->tier, copy.tier);
    EXPECT_EQ(found->version, copy.version);
  }
  EXPECT_EQ(read->Find(SessionOf("ab12", "a")), nullptr) << "another principal's";
}

TEST(CleanMarker, OfAnEarlierReleaseNamesNothing) {
  for (const std::string_view text : {"", "0", "1000", "1000\n"}) EXPECT_FALSE(CleanMarker::Parse(text).has_value());
}

TEST(CleanMarker, ThatIsDamagedNamesNothing) {
  const std::string text = Sample().ToText();
  for (size_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(CleanMarker::Parse(std::string_view(text).substr(0, i)).has_value()) << i;
    std::string changed = text;
    changed[i] ^= 1;
    EXPECT_FALSE(CleanMarker::Parse(changed).has_value()) << i;
  }
  EXPECT_FALSE(CleanMarker::Parse(text + "x").has_value());
}

TEST(CleanMarker, HasABoundAndDoesNotNameWhatIsBeyond) {
  CleanMarker marker;
  const std::string principal(64, 'a');
  for (int i = 0; i < 170'000; ++i) {
    std::string id = std::to_string(i);
    id.insert(0, 128 - id.size(), '0');
    marker.sessions[SessionOf(principal, id)] = {.tier = "redis"};
  }
  const std::string text = marker.ToText();
  EXPECT_LE(text.size(), CleanMarker::kMostBytes);
  const std::optional<CleanMarker> read = CleanMarker::Parse(text);
  ASSERT_TRUE(read.has_value());
  EXPECT_LT(read->sessions.size(), marker.sessions.size());
  EXPECT_GT(read->sessions.size(), 130'000);
}

TEST(CleanMarker, CountsBesideARedisThatSaysTheSame) {
  EXPECT_TRUE(Sample().AgreesWith("0123456789abcdef"));
  EXPECT_FALSE(Sample().AgreesWith("fedcba9876543210"));
  EXPECT_FALSE(Sample().AgreesWith(kPrefixUnused)) << "emptied";
  EXPECT_TRUE(CleanMarker().AgreesWith(kPrefixUnused)) << "a Redis that is new";
  EXPECT_FALSE(CleanMarker{.redis = std::string(kPrefixUnknown)}.AgreesWith(kPrefixUnknown));
}

}  // namespace
}  // namespace gdn::clean_marker_test
