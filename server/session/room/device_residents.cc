#include "server/session/room/device_residents.h"

#include <algorithm>
#include <initializer_list>
#include <tuple>

namespace gdn {
namespace {

constexpr absl::Duration kLeastStuck = absl::Seconds(5);
constexpr absl::Duration kMostStuck = absl::Minutes(5);

}  // namespace

// Position in an account's line, up to which sessions have been looked at.
struct DeviceResidents::Cursor {
  std::set<Use>* line = nullptr;
  std::set<Use>::iterator at;
  double shares = 1;   // shares that the account holds; at least 1
  bool stuck = false;  // true: looks for stuck sessions; false: for the others
  Candidate found = {};

  bool GoesAfter(const Cursor& other) const {
    return std::tuple(stuck, -shares, at->first) > std::tuple(other.stuck, -other.shares, other.at->first);
  }
};

void DeviceResidents::Add(const std::shared_ptr<Session>& session, int32_t device, std::string affinity,
                          ByteCharge charge) {
  Residents::node_type before;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  before = Extract(session.get());
  Held& held = held_[static_cast<size_t>(device)];
  ++held.sessions;
  held.bytes += charge.bytes();
  if (!affinity.empty()) {
    Group& group = groups_[affinity];
    group.device = device;
    ++group.sessions;
  }
  Resident resident{.session = session,
                    .account = session->account(),
                    .used = session->last_used(),
                    .device = device,
                    .affinity = std::move(affinity),
                    .charge = std::move(charge)};
  lines_[resident.account.get()].emplace(resident.used, session.get());
  residents_.emplace(session.get(), std::move(resident));
}

DeviceResidents::Residents::node_type DeviceResidents::Extract(const Session* session) {
  auto node = residents_.extract(session);
  if (node.empty()) return node;
  const Resident& resident = node.mapped();
  Held& held = held_[static_cast<size_t>(resident.device)];
  --held.sessions;
  held.bytes -= resident.charge.bytes();
  const auto line = lines_.find(resident.account.get());
  line->second.erase({resident.used, session});
  if (line->second.empty()) lines_.erase(line);
  if (!resident.affinity.empty()) {
    const auto group = groups_.find(resident.affinity);
    if (--group->second.sessions == 0) groups_.erase(group);
  }
  return node;
}

void DeviceResidents::Remove(const Session& session) {
  Residents::node_type removed;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  removed = Extract(&session);
}

bool DeviceResidents::Find(Cursor& cursor, const Leaving& leaving, std::vector<Residents::node_type>& gone) {
  cursor.found = {};
  while (cursor.at != cursor.line->end() && cursor.at->first <= leaving.unused_since) {
    ++looks_;
    const auto use = cursor.at++;
    Resident& resident = residents_.at(use->second);
    std::shared_ptr<Session> session = resident.session.lock();
    const bool last = cursor.line->size() == 1;
    if (session == nullptr) {
      gone.push_back(Extract(use->second));
      if (last) return false;  // the line is gone with its last session
      continue;
    }
    if (const SteadyTime used = session->last_used(); used > resident.used) {
      auto moved = cursor.line->extract(use);
      resident.used = moved.value().first = used;
      const auto there = cursor.line->insert(std::move(moved)).position;
      if (cursor.at == cursor.line->end() || *there < *cursor.at) cursor.at = there;
      continue;
    }
    const bool stuck = leaving.now < resident.stuck_until;
    if (stuck != cursor.stuck || !leaving.devices[static_cast<size_t>(resident.device)] ||
        leaving.not_these.contains(session.get())) {
      continue;
    }
    cursor.at = use;
    cursor.found = {.session = std::move(session), .device = resident.device};
    return true;
  }
  return false;
}

std::vector<DeviceResidents::Candidate> DeviceResidents::FirstToLeave(const Leaving& leaving, size_t most) {
  std::vector<Candidate> first;
  std::vector<Residents::node_type> gone;  // destroyed after the lock is released
  const auto is_over = [this](const ByteAccount& account) {
    return ledger_.SharesHeld(BytePool::kDevice, account) > 1;
  };
  const bool by_one_over = leaving.wanted_by != nullptr && is_over(*leaving.wanted_by);
  absl::MutexLock lock(&mu_);
  for (const bool stuck : {false, true}) {
    if (first.size() == most) break;
    std::vector<const ByteAccount*> accounts;
    for (const auto& [account, line] : lines_) {
      if (leaving.account != nullptr && leaving.account != account) continue;
      if (!by_one_over || account == leaving.wanted_by || is_over(*account)) accounts.push_back(account);
    }
    std::vector<Cursor> cursors;
    for (const ByteAccount* account : accounts) {
      std::set<Use>& line = lines_.at(account);
      const double shares = std::max(1.0, ledger_.SharesHeld(BytePool::kDevice, *account));
      Cursor cursor{.line = &line, .at = line.begin(), .shares = shares, .stuck = stuck};
      if (Find(cursor, leaving, gone)) cursors.push_back(std::move(cursor));
    }
    const auto after = [](const Cursor& a, const Cursor& b) { return a.GoesAfter(b); };
    std::ranges::make_heap(cursors, after);
    while (!cursors.empty() && first.size() < most) {
      std::ranges::pop_heap(cursors, after);
      Cursor& next = cursors.back();
      first.push_back(std::move(next.found));
      ++next.at;
      if (Find(next, leaving, gone)) {
        std::ranges::push_heap(cursors, after);
      } else {
        cursors.pop_back();
      }
    }
  }
  return first;
}

bool DeviceResidents::NoteStuck(const Session& session, SteadyTime now) {
  absl::MutexLock lock(&mu_);
  const auto it = residents_.find(&session);
  if (it == residents_.end() || now < it->second.stuck_until) return false;
  Resident& resident = it->second;
  resident.stuck_for = std::clamp(2 * resident.stuck_for, kLeastStuck, kMostStuck);
  resident.stuck_until = now + resident.stuck_for;
  return true;
}

std::optional<int32_t> DeviceResidents::DeviceOf(const std::string& affinity) const {
  absl::MutexLock lock(&mu_);
  const auto group = groups_.find(affinity);
  return group == groups_.end() ? std::nullopt : std::optional(group->second.device);
}

int64_t DeviceResidents::sessions() const {
  absl::MutexLock lock(&mu_);
  return static_cast<int64_t>(residents_.size());
}

DeviceResidents::Held DeviceResidents::held(int32_t device) const {
  absl::MutexLock lock(&mu_);
  return held_[static_cast<size_t>(device)];
}

int64_t DeviceResidents::looks() const {
  absl::MutexLock lock(&mu_);
  return looks_;
}

}  // namespace gdn
