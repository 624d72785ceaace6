#include "server/session/legacy_principals.h"

#include <spdlog/spdlog.h>

#include <memory>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kLegacyDigits = 32;

absl::Status BeingMoved(const std::string& id) {
  return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy,
                   StrCat("sessions/", id, " is being brought under its principal's present name; try again"),
                   {{"session", StrCat("sessions/", id)}});
}

// A copy that was just read, so nobody else has it.
SessionHeader& HeaderOf(const SessionImagePtr& image) { return std::const_pointer_cast<SessionImage>(image)->header; }

}  // namespace

void LegacyPrincipals::Note(const StateKey& key) {
  if (key.principal.size() != kLegacyDigits) return;
  absl::MutexLock lock(&mu_);
  std::set<std::string>& checkpoints = stored_[{key.principal, key.id}];
  if (!key.checkpoint.empty()) checkpoints.insert(key.checkpoint);
  empty_ = false;
}

void LegacyPrincipals::Learn(const std::string& now, const std::string& old) {
  absl::MutexLock lock(&mu_);
  const auto first = stored_.lower_bound({old, ""});
  if (first != stored_.end() && first->first.first == old) old_of_[now] = old;
}

std::string LegacyPrincipals::OldOf(std::string_view principal) const {
  if (empty()) return "";
  absl::MutexLock lock(&mu_);
  const auto it = old_of_.find(principal);
  return it == old_of_.end() ? "" : it->second;
}

absl::Status LegacyPrincipals::MoveOver(std::string_view principal, std::string_view id) {
  const Name old(OldOf(principal), id);
  if (old.first.empty()) return absl::NotFoundError("no session has an old name");
  std::set<std::string> checkpoints;
  {
    absl::MutexLock lock(&mu_);
    const auto it = stored_.find(old);
    if (it == stored_.end()) return absl::NotFoundError("the session has no old name");
    if (!moving_.insert(old).second) return BeingMoved(old.second);
    checkpoints = it->second;
  }
  absl::Status moved = Move(old, std::string(principal), checkpoints);
  absl::MutexLock lock(&mu_);
  moving_.erase(old);
  if (moved.ok() || absl::IsNotFound(moved)) stored_.erase(old);
  empty_ = stored_.empty();
  return moved;
}

absl::Status LegacyPrincipals::Move(const Name& old, const std::string& principal,
                                    const std::set<std::string>& checkpoints) {
  GDN_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, sessions_.Find(old.first, old.second));
  SessionLease lease = session->TryLock();
  if (!lease.valid()) return BeingMoved(old.second);
  GDN_RETURN_IF_ERROR(MoveLocked(std::move(lease), principal, checkpoints));
  // All of it is elsewhere now. What a tier cannot erase at once it owes.
  sessions_.Delete(old.first, old.second, [](const absl::Status&) {});
  spdlog::info("session id={} of an old principal's name has been moved over", old.second);
  return absl::OkStatus();
}

absl::Status LegacyPrincipals::MoveLocked(SessionLease lease, const std::string& principal,
                                          const std::set<std::string>& checkpoints) {
  const std::shared_ptr<Session> session = lease.session();
  const StateKey from = session->key();
  const StateKey to{.principal = principal, .id = from.id, .checkpoint = ""};
  for (const std::string& name : checkpoints) {
    StateKey named_from = from, named_to = to;
    named_from.checkpoint = named_to.checkpoint = name;
    GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, tiers_.FetchCheckpoint(named_from));
    HeaderOf(image).principal = principal;
    GDN_RETURN_IF_ERROR(tiers_.Checkpoint(named_to, image).status());
  }
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, tiers_.Fetch(from));
  SessionHeader& header = HeaderOf(image);
  header.principal = principal;
  header.epoch = session->epoch();
  header.changes = static_cast<int64_t>(lease.changes());
  GDN_RETURN_IF_ERROR(tiers_.Checkpoint(to, image).status());
  const SessionLease adopted = sessions_.Adopt({.principal = principal,
                                                .id = session->id(),
                                                .spec = session->spec(),
                                                .affinity = session->affinity(),
                                                .request = session->request(),
                                                .idle_ttl = session->idle_ttl(),
                                                .max_lifetime = session->max_lifetime(),
                                                .epoch = header.epoch,
                                                .changes = header.changes,
                                                .create_time = session->create_time(),
                                                .age = session->Now().at - session->born(),
                                                .prefix_tokens = session->prefix_tokens()},
                                               session->Layers(), absl::Now());
  if (adopted.valid()) tiers_.RestAtCheckpoint(to, image->bytes());
  return absl::OkStatus();
}

}  // namespace gdn
