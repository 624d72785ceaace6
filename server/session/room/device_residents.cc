#include "server/session/room/device_residents.h"

#include <algorithm>
#include <initializer_list>

namespace gdn {
namespace {

constexpr absl::Duration kLeastStuck = absl::Seconds(5);
constexpr absl::Duration kMostStuck = absl::Minutes(5);

}  // namespace

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
  Resident& resident = residents_[session.get()] = {.id = session.get(),
                                                    .session = session,
                                                    .account = session->account(),
                                                    .used = session->last_used(),
                                                    .device = device,
                                                    .affinity = std::move(affinity),
                                                    .charge = std::move(charge)};
  order_.Add(resident);
}

DeviceResidents::Residents::node_type DeviceResidents::Extract(const Session* session) {
  auto node = residents_.extract(session);
  if (node.empty()) return node;
  Resident& resident = node.mapped();
  Held& held = held_[static_cast<size_t>(resident.device)];
  --held.sessions;
  held.bytes -= resident.charge.bytes();
  order_.Remove(resident);
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

std::vector<DeviceResidents::Candidate> DeviceResidents::FirstToLeave(const Leaving& leaving, size_t most) {
  std::vector<Candidate> first;
  std::vector<Residents::node_type> gone;  // destroyed after the lock is released
  const auto shares_of = [this](const ByteAccount& account) { return ledger_.SharesHeld(BytePool::kDevice, account); };
  const bool by_one_over = leaving.wanted_by != nullptr && shares_of(*leaving.wanted_by) > 1;
  const auto rank = [&](const Resident& any) -> std::optional<double> {
    const ByteAccount* const account = any.account.get();
    if (leaving.account != nullptr && leaving.account != account) return std::nullopt;
    const double shares = shares_of(*account);
    if (by_one_over && account != leaving.wanted_by && shares <= 1) return std::nullopt;
    return std::max(1.0, shares);
  };
  std::vector<const Session*> ended;
  absl::MutexLock lock(&mu_);
  for (const bool stuck : {false, true}) {
    const auto take = [&](const Resident& resident) {
      std::shared_ptr<Session> session = resident.session.lock();
      if (session == nullptr) {
        ended.push_back(resident.id);
      } else if (stuck == (leaving.now < resident.stuck_until) &&
                 leaving.devices[static_cast<size_t>(resident.device)] && !leaving.not_these.contains(session.get())) {
        first.push_back({.session = std::move(session), .device = resident.device});
      }
      return first.size() == most;
    };
    if (order_.First(rank, take, leaving.unused_since) != nullptr) break;
  }
  for (const Session* session : ended) gone.push_back(Extract(session));
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
  return order_.looks();
}

}  // namespace gdn
