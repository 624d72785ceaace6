#include "server/session/session_manager.h"

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

absl::Status NotFound(const std::string& id) {
  return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
                   StrCat("no session named 'sessions/", id, "'; create it first"),
                   {{"session", StrCat("sessions/", id)}});
}

}  // namespace

SessionCreation::~SessionCreation() {
  if (manager_ == nullptr) return;
  absl::MutexLock lock(&manager_->mu_);
  manager_->sessions_.erase(key_);
}

void SessionCreation::Publish() {
  if (manager_ == nullptr) return;
  absl::MutexLock lock(&manager_->mu_);
  manager_->sessions_.at(key_).published = true;
  manager_ = nullptr;
}

absl::StatusOr<SessionCreation> SessionManager::Begin(const std::string& principal, std::string id, SessionSpec spec,
                                                      std::string affinity, const Hash128& request) {
  if (id.empty()) id = RandomId();
  const Key key(principal, id);
  absl::MutexLock lock(&mu_);
  if (const auto it = sessions_.find(key); it != sessions_.end()) {
    if (!it->second.published) {
      return MakeError(absl::StatusCode::kAborted, reason::kSessionBusy,
                       StrCat("sessions/", id, " is being made by another call; try again"),
                       {{"session", StrCat("sessions/", id)}});
    }
    if (it->second.request != request) {
      return MakeError(
          absl::StatusCode::kAlreadyExists, reason::kSessionExists,
          StrCat("sessions/", id, " exists and was made by a different request; choose another id or delete it"),
          {{"session", StrCat("sessions/", id)}});
    }
    return SessionCreation(nullptr, key, it->second.session);
  }
  GDN_ASSIGN_OR_RETURN(SlotReservation slots, store_.Reserve(spec.dims, static_cast<int32_t>(spec.layers.size())));
  auto session = std::make_shared<Session>(id, std::move(spec), std::move(affinity), std::move(slots));
  sessions_.emplace(key, Entry{.session = session, .request = request});
  return SessionCreation(this, key, std::move(session));
}

absl::StatusOr<std::shared_ptr<Session>> SessionManager::Find(const std::string& principal,
                                                              const std::string& id) const {
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(Key(principal, id));
  if (it == sessions_.end() || !it->second.published) return NotFound(id);
  return it->second.session;
}

std::vector<std::shared_ptr<Session>> SessionManager::List(const std::string& principal, const std::string& after,
                                                           size_t limit) const {
  std::vector<std::shared_ptr<Session>> sessions;
  absl::MutexLock lock(&mu_);
  for (auto it = sessions_.upper_bound(Key(principal, after));
       it != sessions_.end() && it->first.first == principal && sessions.size() < limit; ++it) {
    if (it->second.published) sessions.push_back(it->second.session);
  }
  return sessions;
}

absl::Status SessionManager::Delete(const std::string& principal, const std::string& id) {
  std::shared_ptr<Session> session;  // freed after the lock: returning many slots takes time
  absl::MutexLock lock(&mu_);
  const auto it = sessions_.find(Key(principal, id));
  if (it == sessions_.end() || !it->second.published) return NotFound(id);
  GDN_RETURN_IF_ERROR(it->second.session->MarkDeleted());
  session = std::move(it->second.session);
  sessions_.erase(it);
  return absl::OkStatus();
}

size_t SessionManager::size() const {
  absl::MutexLock lock(&mu_);
  return sessions_.size();
}

}  // namespace gdn
