#include "server/rpc/callers/session_owners.h"

#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr char kUnknown = '~';  // no subject begins with it (server/security/token_list.h)

}  // namespace

void SessionOwners::Learn(const std::string& principal, const std::string& subject) {
  absl::MutexLock lock(&mu_);
  subjects_.try_emplace(principal, subject);
}

void SessionOwners::LearnListed(const Authenticator& authenticator) {
  // Read before the list: if the list changes meanwhile, it is read again.
  const int64_t version = authenticator.version();
  {
    absl::MutexLock lock(&mu_);
    if (listed_version_ == version) return;
  }
  for (const std::string& subject : authenticator.Subjects()) Learn(principals_.NameOfListed(subject), subject);
  absl::MutexLock lock(&mu_);
  listed_version_ = version;
}

std::string SessionOwners::OwnerOf(const std::string& principal) const {
  absl::MutexLock lock(&mu_);
  const auto known = subjects_.find(principal);
  return known != subjects_.end() ? known->second : StrCat(std::string_view(&kUnknown, 1), principal);
}

std::string SessionOwners::PrincipalOf(std::string_view owner) const {
  if (!owner.empty() && owner.front() == kUnknown) return std::string(owner.substr(1));
  return principals_.NameOfListed(std::string(owner));
}

}  // namespace gdn
