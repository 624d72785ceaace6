// Whose sessions they are, as admins are told: subjects, by the names that principals have inside the server.
//
// Thread safety: safe from any thread. Ownership: `principals` must outlive it.
//
//   SessionOwners owners(principals);
//   owners.Learn(principals.NameOfListed("alice"), "alice");
//   owners.OwnerOf(session.principal());  // "alice"; of a name that nobody has told of "~" and the name
//   owners.PrincipalOf("alice");          // the name; of "~" and a name that name
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/rpc/principals.h"
#include "server/security/authenticator.h"

namespace gdn {

class SessionOwners {
 public:
  explicit SessionOwners(const Principals& principals) : principals_(principals) {}
  SessionOwners(const SessionOwners&) = delete;
  SessionOwners& operator=(const SessionOwners&) = delete;

  void Learn(const std::string& principal, const std::string& subject);
  // Those that the authenticator lists, where it has changed its list since it was last asked.
  void LearnListed(const Authenticator& authenticator);

  std::string OwnerOf(const std::string& principal) const;
  // What OwnerOf would tell as `owner`; a subject begins with no "~".
  std::string PrincipalOf(std::string_view owner) const;

 private:
  const Principals& principals_;
  mutable absl::Mutex mu_;
  int64_t listed_version_ ABSL_GUARDED_BY(mu_) = -1;
  std::map<std::string, std::string> subjects_ ABSL_GUARDED_BY(mu_);  // by principal
};

}  // namespace gdn
