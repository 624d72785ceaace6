// What waits, in turns: of the owners that have something waiting, the one that has had least is next.
//
// Owners may belong to a group, which then has one part for all of them: first the group that has had least for its
// weight is chosen, then the owner in it; what one owner has put in comes out in order. What an owner has had is said
// by Charge, in any unit. Who comes back after a while is not owed anything for it.
// Thread safety: none; its user locks. Ownership: values; owners and groups are identities, nothing is read through
// them.
//
//   TurnQueue<Task> queue;
//   queue.Push({.of = account}, task);
//   while (auto next = queue.Pop()) { ...run next->item...; queue.Charge(next->turn, seconds); }
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace gdn {

// Whose turn it is.
struct Turn {
  const void* group = nullptr;
  const void* of = nullptr;
  double weight = 1;  // of the group, above 0
};

template <typename T>
class TurnQueue {
 public:
  struct Item {
    Turn turn;
    T item;
  };

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }
  // Those that are remembered.
  size_t owners() const {
    size_t owners = 0;
    for (const auto& [name, group] : groups_) owners += group.owners.size();
    return owners;
  }

  void Push(const Turn& turn, T item) {
    Group& group = groups_[turn.group];
    group.weight = turn.weight;
    Owner& owner = group.owners[turn.of];
    if (group.waiting == 0) group.had = std::max(group.had, now_);
    if (owner.items.empty()) owner.had = std::max(owner.had, group.now);
    owner.items.emplace_back(next_++, std::move(item));
    ++group.waiting;
    ++size_;
  }

  // nullopt: nothing waits. Charge is to follow, once what it takes is known.
  std::optional<Item> Pop() {
    if (size_ == 0) return std::nullopt;
    const auto group = Least(groups_, [](const Group& one) { return one.waiting > 0; });
    const auto owner = Least(group->second.owners, [](const Owner& one) { return !one.items.empty(); });
    now_ = group->second.had;
    group->second.now = owner->second.had;
    Item next{.turn = {.group = group->first, .of = owner->first, .weight = group->second.weight},
              .item = std::move(owner->second.items.front().second)};
    owner->second.items.pop_front();
    --group->second.waiting;
    --size_;
    Add(next.turn, kMeanwhile);
    return next;
  }

  // What Pop gave goes back to where it was, and is not charged.
  void PutBack(Item taken) {
    Group& group = groups_[taken.turn.group];
    group.owners[taken.turn.of].items.emplace_front(0, std::move(taken.item));
    ++group.waiting;
    ++size_;
    Add(taken.turn, -kMeanwhile);
  }

  // `cost`: what the item that Pop gave has taken, 0 or more.
  void Charge(const Turn& turn, double cost) {
    Add(turn, cost - kMeanwhile);
    CatchUp(turn);
    Forget();
  }

 private:
  // What an item counts for until it is charged, so that several at a time do not all go to one owner.
  static constexpr double kMeanwhile = 1e-3;
  static constexpr size_t kFewOwners = 64;

  struct Owner {
    double had = 0;
    std::deque<std::pair<uint64_t, T>> items;  // with when each was pushed
    bool idle(double now) const { return items.empty() && had <= now; }
    uint64_t first() const { return items.front().first; }
  };
  struct Group {
    double weight = 1;
    double had = 0;
    double now = 0;  // what the owner had that was last chosen
    size_t waiting = 0;
    std::map<const void*, Owner> owners;
    uint64_t first() const { return 0; }
  };

  template <typename Map, typename Waits>
  static typename Map::iterator Least(Map& map, const Waits& waits) {
    auto least = map.end();
    for (auto it = map.begin(); it != map.end(); ++it) {
      if (!waits(it->second)) continue;
      if (least == map.end() ||
          std::pair(it->second.had, it->second.first()) < std::pair(least->second.had, least->second.first())) {
        least = it;
      }
    }
    return least;
  }

  void Add(const Turn& turn, double cost) {
    const auto group = groups_.find(turn.group);
    if (group == groups_.end()) return;
    group->second.had += cost / group->second.weight;
    const auto owner = group->second.owners.find(turn.of);
    if (owner != group->second.owners.end()) owner->second.had += cost;
  }

  // Where nobody waits nobody is behind: who comes next begins with what the last one has had.
  void CatchUp(const Turn& turn) {
    const auto group = groups_.find(turn.group);
    if (group == groups_.end()) return;
    if (size_ == 0) now_ = std::max(now_, group->second.had);
    const auto owner = group->second.owners.find(turn.of);
    if (group->second.waiting > 0 || owner == group->second.owners.end()) return;
    group->second.now = std::max(group->second.now, owner->second.had);
  }

  // Owners that have nothing waiting and no more than others have had, once there are many.
  void Forget() {
    for (auto group = groups_.begin(); group != groups_.end();) {
      std::map<const void*, Owner>& owners = group->second.owners;
      if (owners.size() > kFewOwners + 2 * group->second.waiting) {
        std::erase_if(owners, [&](const auto& owner) { return owner.second.idle(group->second.now); });
      }
      const bool over = group->second.waiting == 0 && owners.empty() && group->second.had <= now_;
      group = over ? groups_.erase(group) : std::next(group);
    }
  }

  std::map<const void*, Group> groups_;
  double now_ = 0;  // what the group had that was last chosen
  size_t size_ = 0;
  uint64_t next_ = 0;
};

}  // namespace gdn
