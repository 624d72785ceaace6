#include "server/rpc/bring_sessions.h"

#include <map>
#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "base/random_id.h"
#include "base/task/arrivals.h"
#include "server/fleet/fleet.h"
#include "server/rpc/calls.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// One call's sessions that are not here.
struct Bringing {
  absl::Mutex mu;
  size_t missing ABSL_GUARDED_BY(mu) = 0;
  std::map<std::string, absl::Status> not_here ABSL_GUARDED_BY(mu);
  Caller caller;
  std::function<void(const Caller&)> then;

  void Came(const std::string& id, const absl::Status& status) {
    {
      absl::MutexLock lock(&mu);
      if (!status.ok()) not_here.emplace(id, status);
      if (--missing > 0) return;
      if (!not_here.empty()) {
        caller.not_here = std::make_shared<const std::map<std::string, absl::Status>>(std::move(not_here));
      }
    }
    std::exchange(then, nullptr)(caller);
  }
};

}  // namespace

void BringSessions(const ServiceContext& context, const Caller& caller, std::vector<WantedSession> wanted,
                   std::function<void(const Caller&)> then) {
  if (context.fleet != nullptr && caller.allowed.ok()) {
    std::erase_if(wanted, [&](const WantedSession& session) {
      return session.id.empty() || !CheckSessionId(session.id).ok() ||
             context.sessions.Knows(session.principal, session.id);
    });
  }
  if (context.fleet == nullptr || wanted.empty() || !caller.allowed.ok()) return then(caller);
  const auto bringing = std::make_shared<Bringing>();
  bringing->caller = caller;
  bringing->then = std::move(then);
  {
    absl::MutexLock lock(&bringing->mu);
    bringing->missing = wanted.size();
  }
  for (const WantedSession& session : wanted) {
    context.fleet->arrivals().Bring(
        {.principal = session.principal, .id = session.id, .checkpoint = ""},
        {.make = session.make, .account = caller.account, .limit = caller.limit},
        [bringing, id = session.id](const absl::Status& came) { bringing->Came(id, came); });
  }
}

Task<void> BringHere(const ServiceContext& context, Caller& caller, std::vector<WantedSession> wanted) {
  if (context.fleet == nullptr) co_return;
  Arrivals brought;
  brought.Begin();
  BringSessions(context, caller, std::move(wanted), [&caller, &brought](const Caller& found) {
    caller.not_here = found.not_here;
    brought.End();
  });
  co_await brought.All();
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
