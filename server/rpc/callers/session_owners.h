// Subjects of principals, so that admins see the owner of a session by its subject and not by the principal's internal
// name.
//
// Thread safety: safe from any thread. Ownership: `principals` must outlive it.
//
//   SessionOwners owners(principals);
//   owners.Learn(principals.NameOfListed("alice"), "alice");
//   owners.OwnerOf(session.principal());  // "alice"; for an unknown principal "~" and its internal name
//   owners.PrincipalOf("alice");          // the internal name; also accepts "~" and an internal name
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/callers/principals.h"
#include "server/security/authenticator.h"

namespace gdn {

class SessionOwners {
 public:
  explicit SessionOwners(const Principals& principals) : principals_(principals) {}
  SessionOwners(const SessionOwners&) = delete;
  SessionOwners& operator=(const SessionOwners&) = delete;

  // Remembers the subject of a principal. If the principal has one already, that one stays.
  void Learn(const std::string& principal, const std::string& subject);
  // Learns the subjects that the authenticator lists, if the list has changed since the last call.
  void LearnListed(const Authenticator& authenticator);

  // Returns the subject of a principal; for an unknown principal "~" and its internal name.
  std::string OwnerOf(const std::string& principal) const;
  // Returns the principal's internal name for a subject, which need not be known, or for "~" and an internal name. No
  // subject begins with "~".
  std::string PrincipalOf(std::string_view owner) const;

 private:
  const Principals& principals_;
  mutable absl::Mutex mu_;
  int64_t listed_version_ ABSL_GUARDED_BY(mu_) = -1;
  std::map<std::string, std::string> subjects_ ABSL_GUARDED_BY(mu_);  // by principal
};

}  // namespace gdn
