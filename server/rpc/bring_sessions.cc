#include "server/rpc/bring_sessions.h"

#include <map>
#include <memory>
#include <utility>

#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/task/when_all.h"
#include "server/fleet/fleet.h"
#include "server/session/session_errors.h"
#include "server/validation/names.h"

namespace gdn {

Task<void> BringHere(const SessionLookup& lookup, Caller& caller, std::vector<WantedSession> wanted) {
  if (lookup.fleet == nullptr || !caller.allowed.ok()) co_return;
  std::erase_if(wanted, [&](const WantedSession& session) {
    return !IsStateId(session.id) || lookup.sessions.Knows(session.principal, session.id);
  });
  std::vector<Task<absl::Status>> coming;
  for (const WantedSession& session : wanted) {
    StateKey key{.principal = session.principal, .id = session.id, .checkpoint = ""};
    BringRequest request{.make = session.make, .account = caller.account, .deadline = caller.deadline};
    coming.push_back(lookup.fleet->arrivals().Bring(std::move(key), std::move(request)));
  }
  if (coming.empty()) co_return;
  const std::vector<absl::Status> came = co_await WhenAll(std::move(coming));
  std::map<std::string, absl::Status> not_here;
  for (size_t i = 0; i < came.size(); ++i) {
    if (!came[i].ok()) not_here.emplace(wanted[i].id, came[i]);
  }
  if (not_here.empty()) co_return;
  caller.not_here = std::make_shared<const std::map<std::string, absl::Status>>(std::move(not_here));
}

void GiveBackName(const SessionLookup& lookup, const std::string& principal, const std::string& id) {
  if (lookup.fleet != nullptr) lookup.fleet->GiveBackName({.principal = principal, .id = id, .checkpoint = ""});
}

std::string IdToMake(const SessionLookup& lookup, const std::string& asked) {
  return asked.empty() && lookup.fleet != nullptr ? RandomId() : asked;
}

std::vector<WantedSession> WantedByName(const SessionLookup& lookup, const Caller& caller, std::string_view name,
                                        std::string_view subject) {
  const absl::StatusOr<std::string_view> id = ParseSessionName(name);
  const absl::StatusOr<std::string> principal = PrincipalFor(lookup.owners, caller, subject);
  if (!id.ok() || !principal.ok()) return {};
  return {{.principal = *principal, .id = std::string(*id)}};
}

absl::StatusOr<std::string> PrincipalFor(const SessionOwners& owners, const Caller& caller, std::string_view subject) {
  if (subject.empty()) return caller.principal;
  GDN_RETURN_IF_ERROR(CheckAdmin(caller, "a session of another subject"));
  return owners.PrincipalOf(subject);
}

absl::StatusOr<std::shared_ptr<Session>> FindSession(const SessionLookup& lookup, const Caller& caller,
                                                     std::string_view name) {
  GDN_ASSIGN_OR_RETURN(const std::string_view id, ParseSessionName(name));
  if (caller.not_here != nullptr) {
    const auto it = caller.not_here->find(std::string(id));
    if (it != caller.not_here->end()) return it->second;
  }
  auto session = lookup.sessions.Find(caller.principal, id);
  // The session was here when the call began, so it has left since.
  if (lookup.fleet != nullptr && absl::IsNotFound(session.status())) return SessionMoved(std::string(id));
  return session;
}

}  // namespace gdn
