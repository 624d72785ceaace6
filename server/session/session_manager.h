// All sessions, by principal and id.
//
// Ids are private to their principal: a foreign id and an unknown one answer alike, and two principals may use the same
// id.
// Thread safety: safe from any thread. Ownership: sessions are shared; a deleted one lives until its last lease ends.
//
//   GDN_ASSIGN_OR_RETURN(auto creation, manager.Begin(principal, "a", spec, "", hash));
//   if (creation.pending()) { ...fill initial states...; session = creation.Publish(); }
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/session/session.h"

namespace gdn {

class SessionManager;

// A session in the making: not to be found by others until it is published; given up on destruction.
class SessionCreation {
 public:
  SessionCreation(SessionCreation&& other) noexcept
      : manager_(std::exchange(other.manager_, nullptr)),
        key_(std::move(other.key_)),
        session_(std::move(other.session_)) {}
  SessionCreation& operator=(SessionCreation&&) = delete;
  ~SessionCreation();

  bool pending() const { return manager_ != nullptr; }  // false: the session was there already, by the same request
  const std::shared_ptr<Session>& session() const { return session_; }
  void Publish();

 private:
  friend class SessionManager;
  using Key = std::pair<std::string, std::string>;
  SessionCreation(SessionManager* manager, Key key, std::shared_ptr<Session> session)
      : manager_(manager), key_(std::move(key)), session_(std::move(session)) {}

  SessionManager* manager_;
  Key key_;
  std::shared_ptr<Session> session_;
};

class SessionManager {
 public:
  explicit SessionManager(StateStore& store) : store_(store) {}
  SessionManager(const SessionManager&) = delete;
  SessionManager& operator=(const SessionManager&) = delete;

  // Reserves the session's states. An empty id becomes 128 random bits. `request` identifies the creating request: the
  // same again finds the session, another is ALREADY_EXISTS (SESSION_EXISTS). ABORTED (SESSION_BUSY) while the same id
  // is in the making; errors of StateStore::Reserve.
  absl::StatusOr<SessionCreation> Begin(const std::string& principal, std::string id, SessionSpec spec,
                                        std::string affinity, const Hash128& request);

  // NOT_FOUND (SESSION_NOT_FOUND).
  absl::StatusOr<std::shared_ptr<Session>> Find(const std::string& principal, const std::string& id) const;

  // At most `limit` sessions of the principal with ids after `after`, ascending by id.
  std::vector<std::shared_ptr<Session>> List(const std::string& principal, const std::string& after,
                                             size_t limit) const;

  // NOT_FOUND (SESSION_NOT_FOUND), ABORTED (SESSION_BUSY).
  absl::Status Delete(const std::string& principal, const std::string& id);

  size_t size() const;  // of all principals

 private:
  friend class SessionCreation;
  using Key = SessionCreation::Key;
  struct Entry {
    std::shared_ptr<Session> session;
    Hash128 request;
    bool published = false;
  };

  StateStore& store_;
  mutable absl::Mutex mu_;
  std::map<Key, Entry> sessions_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
