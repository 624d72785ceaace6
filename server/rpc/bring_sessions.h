// Sessions that another server of the fleet may have are brought here before a call looks for them. Without a fleet
// nothing is to be done.
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
  std::string id;     // one that cannot be is passed over: the call says so
  bool make = false;  // the call makes it
};

// Sessions that could not be brought are in caller.not_here then, and FindSession tells why.
Task<void> BringHere(const ServiceContext& context, Caller& caller, std::vector<WantedSession> wanted);
// A name that was taken for a session that was not made then is given back, some time later.
void GiveBackName(const ServiceContext& context, const std::string& principal, const std::string& id);
// The id of a session to be made, which a fleet has to know before there is one: the request's, or a new one.
std::string IdToMake(const ServiceContext& context, const std::string& asked);

// The sessions that a request names, of its caller or of the principal that an admin names; none where it makes some.
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
  // More than a call may have: it is refused, and moves nothing.
  if (wanted.size() > static_cast<size_t>(context.limits.max_batch)) wanted.clear();
  return wanted;
}

}  // namespace gdn
