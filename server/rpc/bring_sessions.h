// Brings the sessions that a call names to this server, if another server of the fleet may have them. Without a fleet
// it does nothing.
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: context and caller must outlive the
// task.
//
//   std::vector<WantedSession> wanted = WantedIn(context, caller, request);
//   co_await BringHere(context, caller, std::move(wanted));
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/task/task.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/step.pb.h"
#include "server/rpc/caller.h"
#include "server/rpc/service_context.h"

namespace gdn {

struct WantedSession {
  std::string principal;
  std::string id;     // an id that is not valid is skipped here; the call then refuses it
  bool make = false;  // the call creates the session if it does not exist
};

// Waits until every session is here or has failed to come. Failures are stored in caller.not_here, and FindSession
// returns them.
Task<void> BringHere(const ServiceContext& context, Caller& caller, std::vector<WantedSession> wanted);
// Gives back the right to a name that the call took for a session and then did not create. Returns at once; the work is
// done later.
void GiveBackName(const ServiceContext& context, const std::string& principal, const std::string& id);
// Returns the id of the session to create: `asked`, or a new random one if that is empty and there is a fleet, which
// must know the id first.
std::string IdToMake(const ServiceContext& context, const std::string& asked);

// The sessions that a request names. They belong to the caller, or to the principal that an admin names in `subject`.
// Empty for requests that create sessions.
std::vector<WantedSession> WantedByName(const ServiceContext& context, const Caller& caller, std::string_view name,
                                        std::string_view subject = "");
template <typename Request>
std::vector<WantedSession> WantedIn(const ServiceContext& context, const Caller& caller, const Request& request) {
  if (context.fleet == nullptr) return {};
  std::vector<WantedSession> wanted;
  const auto add = [&](std::string_view name, std::string_view subject = "") {
    for (WantedSession& session : WantedByName(context, caller, name, subject)) wanted.push_back(std::move(session));
  };
  if constexpr (requires { request.acceptances(); }) {
    for (const auto& acceptance : request.acceptances()) add(acceptance.session());
  } else if constexpr (requires { request.names(); }) {
    for (const std::string& name : request.names()) add(name);
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
  if (wanted.size() > static_cast<size_t>(context.limits.max_batch)) wanted.clear();
  return wanted;
}

}  // namespace gdn
