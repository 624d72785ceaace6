// A fair queue: the next item comes from the waiting owner that has used least.
//
// Owners may belong to a group. Pop chooses the group that has used least for its weight, then the owner in it that has
// used least, then that owner's oldest item. Charge adds to what an owner and its group have used, in any unit. An
// owner that returns after a pause gets no credit for it.
// Thread safety: none; the user locks. Ownership: values. Owners and groups are compared by address, never
// dereferenced.
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

// The owner of an item, and the owner's group. Both are identified by address; null is an owner, or a group, like any
// other.
struct Turn {
  const void* group = nullptr;
  const void* of = nullptr;  // owner of the item
  double weight = 1;         // weight of the group, above 0
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
  // Returns the number of owners whose use is remembered.
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

  // Returns the next item, nullopt if none waits. Call Charge once the item's cost is known.
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

  // Undoes a Pop: puts the item back at the front of its owner's items. Call it instead of Charge.
  void PutBack(Item taken) {
    Group& group = groups_[taken.turn.group];
    group.owners[taken.turn.of].items.emplace_front(0, std::move(taken.item));
    ++group.waiting;
    ++size_;
    Add(taken.turn, -kMeanwhile);
  }

  // Adds the cost of a popped item, 0 or more, to what its owner and group have used. Call once for each Pop.
  void Charge(const Turn& turn, double cost) {
    Add(turn, cost - kMeanwhile);
    CatchUp(turn);
    Forget();
  }

 private:
  // Provisional cost of an item between Pop and Charge, so that concurrent Pops do not all choose one owner.
  static constexpr double kMeanwhile = 1e-3;
  static constexpr size_t kFewOwners = 64;  // owners that a group remembers even if nothing of theirs waits

  struct Owner {
    double had = 0;                            // sum of the owner's costs
    std::deque<std::pair<uint64_t, T>> items;  // oldest first, each with the number of its Push
    bool idle(double now) const { return items.empty() && had <= now; }
    uint64_t first() const { return items.front().first; }
  };
  struct Group {
    double weight = 1;
    double had = 0;      // sum of its owners' costs, each divided by the weight
    double now = 0;      // Owner::had of the owner chosen last
    size_t waiting = 0;  // number of items that wait
    std::map<const void*, Owner> owners;
    uint64_t first() const { return 0; }
  };

  // Returns the group or owner with the least use among those that have waiting items. If several are equal: the owner
  // whose first item was pushed earliest.
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

  // If nothing waits, the next owner or group to come starts at the use of the last one, so idle time earns no credit.
  void CatchUp(const Turn& turn) {
    const auto group = groups_.find(turn.group);
    if (group == groups_.end()) return;
    if (size_ == 0) now_ = std::max(now_, group->second.had);
    const auto owner = group->second.owners.find(turn.of);
    if (group->second.waiting > 0 || owner == group->second.owners.end()) return;
    group->second.now = std::max(group->second.now, owner->second.had);
  }

  // Once a group has many owners, drops those with nothing waiting that have used no more than the others.
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
  double now_ = 0;  // Group::had of the group chosen last
  size_t size_ = 0;
  uint64_t next_ = 0;
};

}  // namespace gdn
