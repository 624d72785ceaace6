#include "base/threads/turn_queue.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <string>

namespace gdn::turn_queue_test {
namespace {

constexpr std::array<char, 4> kOwners = {'a', 'b', 'c', 'd'};

Turn Of(size_t owner, double weight = 1, const void* group = nullptr) {
  return {.group = group, .of = &kOwners[owner], .weight = weight};
}

// Takes `items` items in the order of the queue, charges each with `cost(item)`, and returns them.
template <typename Cost>
std::string Serve(TurnQueue<char>& queue, size_t items, const Cost& cost) {
  std::string ran;
  for (size_t i = 0; i < items; ++i) {
    const auto next = queue.Pop();
    if (!next.has_value()) break;
    ran += next->item;
    queue.Charge(next->turn, cost(next->item));
  }
  return ran;
}

void Fill(TurnQueue<char>& queue, const Turn& turn, char item, int count) {
  for (int i = 0; i < count; ++i) queue.Push(turn, item);
}

TEST(TurnQueue, WithoutOwnersTheOrderIsThatOfCalls) {
  TurnQueue<int> queue;
  EXPECT_FALSE(queue.Pop().has_value());
  for (int i = 0; i < 10; ++i) queue.Push({}, i);
  for (int i = 0; i < 10; ++i) {
    const auto next = queue.Pop();
    ASSERT_TRUE(next.has_value());
    EXPECT_EQ(next->item, i);
    queue.Charge(next->turn, i % 3);
  }
  EXPECT_TRUE(queue.empty());
}

TEST(TurnQueue, OwnersGetAsMuchAsEachOtherWhateverTheyPutIn) {
  TurnQueue<char> queue;
  Fill(queue, Of(0), 'a', 1000);
  Fill(queue, Of(1), 'b', 20);
  const std::string ran = Serve(queue, 40, [](char) { return 1.0; });
  EXPECT_EQ(std::ranges::count(ran, 'b'), 20);
}

TEST(TurnQueue, WhoseItemsTakeLongerGetsFewerOfThem) {
  TurnQueue<char> queue;
  Fill(queue, Of(0), 'a', 1000);
  Fill(queue, Of(1), 'b', 1000);
  const std::string ran = Serve(queue, 110, [](char item) { return item == 'a' ? 10.0 : 1.0; });
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ran, 'a')), 10.0, 1.0);
}

TEST(TurnQueue, AGroupHasOnePartHoweverManyOwnersItHas) {
  TurnQueue<char> queue;
  const char one = 0, other = 0;
  for (size_t owner = 0; owner < 3; ++owner) Fill(queue, Of(owner, 1, &one), 'a', 1000);
  Fill(queue, Of(3, 1, &other), 'd', 1000);
  const std::string ran = Serve(queue, 100, [](char) { return 1.0; });
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ran, 'd')), 50.0, 1.0);
}

TEST(TurnQueue, GroupsAreWeighted) {
  TurnQueue<char> queue;
  const char heavy = 0, light = 0;
  Fill(queue, Of(0, 3, &heavy), 'a', 1000);
  Fill(queue, Of(1, 1, &light), 'b', 1000);
  const std::string ran = Serve(queue, 100, [](char) { return 1.0; });
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ran, 'a')), 75.0, 2.0);
}

TEST(TurnQueue, WhoComesBackIsNotOwedForTheTimeBetween) {
  TurnQueue<char> queue;
  Fill(queue, Of(1), 'b', 1);
  Serve(queue, 1, [](char) { return 1.0; });
  Fill(queue, Of(0), 'a', 200);
  Serve(queue, 100, [](char) { return 1.0; });
  Fill(queue, Of(1), 'b', 100);
  const std::string ran = Serve(queue, 20, [](char) { return 1.0; });
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ran, 'b')), 10.0, 1.0);
}

TEST(TurnQueue, WhoGoesAndComesBackStillOwesWhatItHas) {
  TurnQueue<char> queue;
  Fill(queue, Of(0), 'a', 1000);
  std::string ran;
  // A new item of b's whenever it has none: the turns must be even all the same.
  for (int i = 0; i < 100; ++i) {
    if (ran.empty() || ran.back() == 'b') queue.Push(Of(1), 'b');
    ran += Serve(queue, 1, [](char item) { return item == 'b' ? 9.0 : 1.0; });
  }
  EXPECT_NEAR(static_cast<double>(std::ranges::count(ran, 'b')), 10.0, 2.0);
}

TEST(TurnQueue, WhatIsPutBackIsNextAgain) {
  TurnQueue<char> queue;
  queue.Push(Of(0), 'a');
  queue.Push(Of(0), 'b');
  queue.Push(Of(1), 'c');
  queue.PutBack(*queue.Pop());
  EXPECT_EQ(queue.size(), 3u);
  EXPECT_EQ(Serve(queue, 3, [](char) { return 1.0; }), "acb");
}

TEST(TurnQueue, OwnersThatHaveGoneAreForgotten) {
  TurnQueue<int> queue;
  std::array<char, 5000> owners{};
  for (int round = 0; round < 3; ++round) {
    for (const char& owner : owners) {
      queue.Push({.of = &owner}, 1);
      queue.Charge(queue.Pop()->turn, 1);
    }
  }
  EXPECT_TRUE(queue.empty());
  EXPECT_LE(queue.owners(), 200u);
}

// Several threads: an owner's second item is not begun before another's first.
TEST(TurnQueue, WhatIsUnderWayCountsALittle) {
  TurnQueue<char> queue;
  Fill(queue, Of(0), 'a', 5);
  Fill(queue, Of(1), 'b', 5);
  std::map<char, int> begun;
  for (int i = 0; i < 4; ++i) ++begun[queue.Pop()->item];
  EXPECT_EQ(begun['a'], 2);
  EXPECT_EQ(begun['b'], 2);
}

}  // namespace
}  // namespace gdn::turn_queue_test
