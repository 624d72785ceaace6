// EvictionOrder says which entry is evicted next. It is an entry of the owner with the highest rank, which says how far
// the owner is over its share. Among owners with equal ranks it is the least recently used entry.
//
// Each owner has a line of its entries, by last use as it was when last looked at. An entry that was used since then is
// moved to its right place when its turn comes. So few entries are looked at, however many there are.
// `Entry` has a member `used`, the last use as known here (any ordered type). Entries whose last use is known elsewhere
// have a method LastUsed() too. `kOwner` is the member of Entry that has a shared pointer to the owner.
// Thread safety: none; the user's mutex guards the order and the entries' `used`. Ownership: entries are borrowed, and
// must not move in memory while they are here.
//
//   EvictionOrder<Entry, &Entry::account> order;
//   order.Add(entry);
//   Entry* const next = order.First([&](const Entry& any) { return SharesHeld(*any.account); },
//                                   [](const Entry& entry) { return !entry.busy; });
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"

namespace gdn {

template <typename Entry, auto kOwner>
class EvictionOrder {
 public:
  using Time = std::remove_cvref_t<decltype(std::declval<Entry&>().used)>;

  // Adds an entry by its `used`, which only this class may change until Remove.
  void Add(Entry& entry) { lines_[OwnerOf(entry)].emplace(entry.used, &entry); }
  void Remove(Entry& entry) {
    const auto line = lines_.find(OwnerOf(entry));
    line->second.erase({entry.used, &entry});
    if (line->second.empty()) lines_.erase(line);
  }
  // Sets the last use of an entry that is here.
  void Use(Entry& entry, Time now) {
    Remove(entry);
    entry.used = std::move(now);
    Add(entry);
  }

  // Returns the first entry in the order for which `take` returns true; nullptr if there is none. `rank` gets any entry
  // of an owner, and returns the owner's rank, or nullopt to pass over all of the owner's entries. Entries that were
  // used after `until` are passed over too. Neither function may change the order.
  Entry* First(absl::FunctionRef<std::optional<double>(const Entry&)> rank, absl::FunctionRef<bool(Entry&)> take,
               std::optional<Time> until = std::nullopt);

  // Returns how many entries First has looked at in total. For tests.
  int64_t looks() const { return looks_; }

 private:
  using Line = std::set<std::pair<Time, Entry*>>;
  // Position in an owner's line, up to which entries have been looked at.
  struct Cursor {
    double rank = 0;
    Line* line = nullptr;
    typename Line::iterator at;

    static bool GoesAfter(const Cursor& a, const Cursor& b) {
      return a.rank != b.rank ? a.rank < b.rank : *a.at > *b.at;
    }
  };

  static const void* OwnerOf(const Entry& entry) { return (entry.*kOwner).get(); }
  static Time LastUsed(const Entry& entry) {
    if constexpr (requires { entry.LastUsed(); }) return entry.LastUsed();
    return entry.used;
  }

  std::map<const void*, Line> lines_;  // by owner; no line is empty
  int64_t looks_ = 0;
};

template <typename Entry, auto kOwner>
Entry* EvictionOrder<Entry, kOwner>::First(absl::FunctionRef<std::optional<double>(const Entry&)> rank,
                                           absl::FunctionRef<bool(Entry&)> take, std::optional<Time> until) {
  const auto has_more = [&until](const Cursor& cursor) {
    return cursor.at != cursor.line->end() && (!until.has_value() || cursor.at->first <= *until);
  };
  std::vector<Cursor> cursors;
  for (auto& [owner, line] : lines_) {
    const std::optional<double> its = rank(*line.begin()->second);
    if (!its.has_value()) continue;
    if (const Cursor cursor{.rank = *its, .line = &line, .at = line.begin()}; has_more(cursor))
      cursors.push_back(cursor);
  }
  std::ranges::make_heap(cursors, Cursor::GoesAfter);
  while (!cursors.empty()) {
    std::ranges::pop_heap(cursors, Cursor::GoesAfter);
    Cursor& next = cursors.back();
    Entry& entry = *next.at->second;
    ++looks_;
    if (const Time used = LastUsed(entry); used > entry.used) {
      auto moved = next.line->extract(next.at++);
      entry.used = moved.value().first = used;
      const auto there = next.line->insert(std::move(moved)).position;
      if (next.at == next.line->end() || *there < *next.at) next.at = there;
    } else if (take(entry)) {
      return &entry;
    } else {
      ++next.at;
    }
    if (has_more(next)) {
      std::ranges::push_heap(cursors, Cursor::GoesAfter);
    } else {
      cursors.pop_back();
    }
  }
  return nullptr;
}

}  // namespace gdn
