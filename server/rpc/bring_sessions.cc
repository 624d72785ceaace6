#include "server/rpc/bring_sessions.h"

#include <map>
#include <memory>
#include <utility>

#include "base/random_id.h"
#include "base/task/when_all.h"
#include "server/fleet/fleet.h"
#include "server/rpc/calls.h"
#include "server/validation/names.h"

namespace gdn {

Task<void> BringHere(const ServiceContext& context, Caller& caller, std::vector<WantedSession> wanted) {
  if (context.fleet == nullptr || !caller.allowed.ok()) co_return;
  std::erase_if(wanted, [&](const WantedSession& session) {
    return session.id.empty() || !CheckSessionId(session.id).ok() ||
           context.sessions.Knows(session.principal, session.id);
  });
  std::vector<Task<absl::Status>> coming;
  for (const WantedSession& session : wanted) {
    StateKey key{.principal = session.principal, .id = session.id, .checkpoint = ""};
    BringRequest request{.make = session.make, .account = caller.account, .deadline = caller.deadline};
    coming.push_back(context.fleet->arrivals().Bring(std::move(key), std::move(request)));
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

void GiveBackName(const ServiceContext& context, const std::string& principal, const std::string& id) {
  if (context.fleet != nullptr) context.fleet->GiveBackName({.principal = principal, .id = id, .checkpoint = ""});
}

std::string IdToMake(const ServiceContext& context, const std::string& asked) {
  return asked.empty() && context.fleet != nullptr ? RandomId() : asked;
}

std::vector<WantedSession> WantedByName(const ServiceContext& context, const Caller& caller, std::string_view name,
                                        std::string_view subject) {
  const absl::StatusOr<std::string_view> id = ParseSessionName(name);
  const absl::StatusOr<std::string> principal = PrincipalFor(context, caller, subject);
  if (!id.ok() || !principal.ok()) return {};
  return {{.principal = *principal, .id = std::string(*id)}};
}

}  // namespace gdn
