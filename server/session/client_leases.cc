#include "server/session/client_leases.h"

#include <algorithm>
#include <iterator>

#include "server/session/session_errors.h"

namespace gdn {

absl::StatusOr<ClientLeasePtr> ClientLeases::Open(const ByteAccountPtr& account, const std::string& principal,
                                                  const std::string& id, absl::Duration grace) {
  const SteadyTime end = clock_.Now() + grace;
  absl::MutexLock lock(&mu_);
  if (const auto it = leases_.find(Key(principal, id)); it != leases_.end()) {
    if (it->second->grace() != grace) return LeaseExists(id, it->second->grace(), grace);
    it->second->SetEnd(end);
    return it->second;
  }
  const int64_t of_account = std::ranges::count_if(
      leases_, [&account](const auto& entry) { return account != nullptr && entry.second->account() == account; });
  if (of_account >= kMostLeases) return TooManyLeases(kMostLeases);
  return leases_.emplace(Key(principal, id), std::make_shared<ClientLease>(principal, id, grace, account, end))
      .first->second;
}

absl::StatusOr<ClientLeasePtr> ClientLeases::Renew(const std::string& principal, const std::string& id) {
  const SteadyTime now = clock_.Now();
  absl::MutexLock lock(&mu_);
  const auto it = leases_.find(Key(principal, id));
  if (it == leases_.end()) return LeaseNotFound(id);
  it->second->SetEnd(now + it->second->grace());
  return it->second;
}

absl::StatusOr<ClientLeasePtr> ClientLeases::Find(const std::string& principal, const std::string& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = leases_.find(Key(principal, id));
  if (it == leases_.end()) return LeaseNotFound(id);
  return it->second;
}

ClientLeasePtr ClientLeases::Adopt(const std::string& principal, const std::string& id, absl::Duration grace) {
  const SteadyTime end = clock_.Now() + grace;
  absl::MutexLock lock(&mu_);
  ClientLeasePtr& lease = leases_[Key(principal, id)];
  if (lease == nullptr) lease = std::make_shared<ClientLease>(principal, id, grace, /*account=*/nullptr, end);
  return lease;
}

void ClientLeases::End(const ClientLeasePtr& lease) {
  absl::MutexLock lock(&mu_);
  const auto it = leases_.find(Key(lease->principal(), lease->id()));
  if (it != leases_.end() && it->second == lease) leases_.erase(it);
  lease->ended_.store(true, std::memory_order_release);
}

void ClientLeases::EndLapsed(SteadyTime now) {
  if (shared_.load(std::memory_order_relaxed)) return;
  std::vector<ClientLeasePtr> lapsed;  // destroyed after the lock is released: a lease may be its account's last owner
  absl::MutexLock lock(&mu_);
  for (auto it = leases_.begin(); it != leases_.end();) {
    const bool lives = now <= it->second->end();
    if (!lives) {
      it->second->ended_.store(true, std::memory_order_release);
      lapsed.push_back(std::move(it->second));
    }
    it = lives ? std::next(it) : leases_.erase(it);
  }
}

std::vector<ClientLeasePtr> ClientLeases::List(const std::string& principal, const std::string& after,
                                               size_t limit) const {
  std::vector<ClientLeasePtr> listed;
  absl::MutexLock lock(&mu_);
  for (auto it = leases_.upper_bound(Key(principal, after));
       it != leases_.end() && it->first.first == principal && listed.size() < limit; ++it) {
    listed.push_back(it->second);
  }
  return listed;
}

void ClientLeases::SetEnd(const ClientLeasePtr& lease, SteadyTime end) {
  absl::MutexLock lock(&mu_);
  lease->SetEnd(std::max(lease->end(), end));
}

std::vector<ClientLeasePtr> ClientLeases::All() const {
  std::vector<ClientLeasePtr> all;
  absl::MutexLock lock(&mu_);
  all.reserve(leases_.size());
  for (const auto& [key, lease] : leases_) all.push_back(lease);
  return all;
}

}  // namespace gdn
