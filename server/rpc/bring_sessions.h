// Finds the sessions that a call names. First it brings them to this server, if another server of the fleet may have
// them.
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: lookup and caller must outlive the task.
//
//   std::vector<WantedSession> wanted = WantedIn(lookup, caller, request);
//   co_await BringHere(lookup, caller, std::move(wanted));
//   GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(lookup, caller, request.name()));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/task/task.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/step.pb.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/callers/session_owners.h"
#include "server/session/session_manager.h"

namespace gdn {

class Fleet;

struct SessionLookup {
  SessionManager& sessions;
  Fleet* fleet = nullptr;  // nullptr: sessions are not shared with other servers, and none is brought here
  SessionOwners& owners;
  int32_t max_batch;  // most sessions of a call; a call that names more is refused
};

struct WantedSession {
  std::string principal;
  std::string id;     // of a session or a snapshot; BringHere skips an invalid id, and the call then refuses it
  bool make = false;  // true: if there is no such session, reserves the name, because the call will create it
};

// Waits until every session is on this server, or could not be brought in time (caller.deadline). Sets caller.not_here
// to the errors of SessionArrivals::Bring, if there are any; FindSession returns them. Skips invalid ids and sessions
// that are here. Does nothing without a fleet, or if the caller is refused (Caller::allowed).
Task<void> BringHere(const SessionLookup& lookup, Caller& caller, std::vector<WantedSession> wanted);
// Gives up the right to a session name that the call took (WantedSession::make) but did not use to create a session, so
// that other servers may use the name. Returns at once; the store is told later, unless the session is here by then.
// Does nothing without a fleet.
void GiveBackName(const SessionLookup& lookup, const std::string& principal, const std::string& id);
// Returns the id of a session to create: `asked`. If that is empty and there is a fleet, returns a new random id,
// because the fleet must reserve the id before the session is created. Without a fleet returns "", for which
// SessionManager::Begin makes an id.
std::string IdToMake(const SessionLookup& lookup, const std::string& asked);

// Return the sessions for BringHere: the session named `name`, and all sessions in the fields of a request. They belong
// to the caller, or to the principal of `subject` (PrincipalFor). Invalid names are left out, and so are snapshots,
// sessions that the call creates, and a `subject` that the caller may not name. WantedIn returns none without a fleet,
// or for more than max_batch sessions.
std::vector<WantedSession> WantedByName(const SessionLookup& lookup, const Caller& caller, std::string_view name,
                                        std::string_view subject = "");
template <typename Request>
std::vector<WantedSession> WantedIn(const SessionLookup& lookup, const Caller& caller, const Request& request) {
  if (lookup.fleet == nullptr) return {};
  std::vector<WantedSession> wanted;
  const auto add = [&](std::string_view name, std::string_view subject = "") {
    for (WantedSession& session : WantedByName(lookup, caller, name, subject)) wanted.push_back(std::move(session));
  };
  if constexpr (requires { request.acceptances(); }) {
    for (const auto& acceptance : request.acceptances()) add(acceptance.session());
  } else if constexpr (requires { request.rows(); }) {
    for (const auto& row : request.rows()) add(row.session());
  } else if constexpr (requires { request.names(); }) {
    for (const std::string& name : request.names()) add(name);
  } else if constexpr (requires { request.resets(); }) {
    for (const auto& reset : request.resets()) add(reset.name());
  } else if constexpr (requires { request.sessions(); }) {
    for (const std::string& name : request.sessions()) add(name);
  } else if constexpr (requires { request.session(); }) {
    add(request.session());
  } else if constexpr (requires {
                         request.name();
                         request.subject();
                       }) {
    add(request.name(), request.subject());
  } else if constexpr (requires { request.name(); }) {
    add(request.name());
  }
  // The call is refused because it names too many sessions, so none is moved.
  if (wanted.size() > static_cast<size_t>(lookup.max_batch)) wanted.clear();
  return wanted;
}

// Returns the principal of the session that a request names: the caller's, or that of `subject` if this is not empty.
// `subject`: as for SessionOwners::PrincipalOf; it need not be known. PERMISSION_DENIED if a caller that is not an
// admin names any subject.
absl::StatusOr<std::string> PrincipalFor(const SessionOwners& owners, const Caller& caller, std::string_view subject);
// Finds the caller's session named "sessions/ID", and counts that as a use. INVALID_ARGUMENT (INVALID_NAME); the error
// in caller.not_here; errors of SessionManager::Find. In a fleet, UNAVAILABLE (SESSION_MOVED) instead of NOT_FOUND,
// because the session was here when the call began.
absl::StatusOr<std::shared_ptr<Session>> FindSession(const SessionLookup& lookup, const Caller& caller,
                                                     std::string_view name);

}  // namespace gdn
