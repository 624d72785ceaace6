#include "base/eviction_order.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <memory>
#include <string>

namespace gdn::eviction_order_test {
namespace {

struct Entry {
  std::string name;
  std::shared_ptr<const std::string> owner;
  int used = 0;
  int last_used = 0;
  int LastUsed() const { return last_used; }
};

class EvictionOrderTest : public ::testing::Test {
 protected:
  Entry& Add(const std::string& owner, const std::string& name, int used) {
    std::shared_ptr<const std::string>& known = owners_[owner];
    if (known == nullptr) known = std::make_shared<const std::string>(owner);
    Entry& entry = entries_.emplace_back(Entry{.name = name, .owner = known, .used = used, .last_used = used});
    order_.Add(entry);
    return entry;
  }
  // All names in the order of eviction.
  std::string All(std::optional<int> until = std::nullopt) {
    std::string names;
    Entry* const taken = order_.First(
        [this](const Entry& entry) -> std::optional<double> {
          const auto it = ranks_.find(*entry.owner);
          return it == ranks_.end() ? std::nullopt : std::optional(it->second);
        },
        [&names](const Entry& entry) {
          names += entry.name;
          return false;
        },
        until);
    EXPECT_EQ(taken, nullptr);
    return names;
  }

  std::map<std::string, std::shared_ptr<const std::string>> owners_;
  std::deque<Entry> entries_;
  std::map<std::string, double> ranks_ = {{"p", 1}, {"q", 1}, {"over", 2}};
  EvictionOrder<Entry, &Entry::owner> order_;
};

TEST_F(EvictionOrderTest, TheHighestRankGoesFirstThenTheLeastRecentlyUsed) {
  EXPECT_EQ(All(), "");
  Add("p", "c", 3);
  Add("q", "b", 2);
  Add("over", "e", 9);
  Add("p", "a", 1);
  Add("over", "d", 8);
  Add("nobody", "n", 0);
  EXPECT_EQ(All(), "deabc") << "an owner without a rank is passed over";
  ranks_["over"] = 0.5;
  EXPECT_EQ(All(), "abcde");
  EXPECT_EQ(All(/*until=*/2), "ab");
  EXPECT_EQ(All(/*until=*/8), "abcd");
}

TEST_F(EvictionOrderTest, UsesMoveEntriesBackWhoeverNotesThem) {
  Entry& a = Add("p", "a", 1);
  Entry& b = Add("p", "b", 2);
  Add("p", "c", 3);
  Entry& d = Add("q", "d", 4);
  a.last_used = 5;  // known elsewhere
  EXPECT_EQ(All(), "bcda");
  b.last_used = 6;
  order_.Use(b, 6);
  d.last_used = 7;
  EXPECT_EQ(All(), "cabd");
  a.last_used = 8;
  EXPECT_EQ(All(/*until=*/5), "c") << "it was used after that";
}

TEST_F(EvictionOrderTest, GivesTheFirstThatIsTakenAndNotTheRemoved) {
  Entry& a = Add("p", "a", 1);
  Add("p", "b", 2);
  Entry& c = Add("q", "c", 3);
  const auto equal = [](const Entry&) { return std::optional(1.0); };
  EXPECT_EQ(order_.First(equal, [](const Entry& entry) { return entry.name != "a"; })->name, "b");
  order_.Remove(a);
  order_.Remove(c);
  EXPECT_EQ(All(), "b");
  order_.Remove(entries_[1]);
  EXPECT_EQ(All(), "");
}

TEST_F(EvictionOrderTest, LooksAtFewHoweverManyThereAre) {
  for (int i = 0; i < 1000; ++i) Add(i % 2 == 0 ? "p" : "q", ".", i);
  const auto equal = [](const Entry&) { return std::optional(1.0); };
  ASSERT_NE(order_.First(equal, [](const Entry&) { return true; }), nullptr);
  EXPECT_EQ(order_.looks(), 1);
  for (int i = 0; i < 10; ++i) entries_[static_cast<size_t>(i)].last_used = 2000 + i;
  EXPECT_EQ(order_.First(equal, [](const Entry&) { return true; })->used, 10);
  EXPECT_EQ(order_.looks(), 12) << "ten were moved to their places";
}

}  // namespace
}  // namespace gdn::eviction_order_test
