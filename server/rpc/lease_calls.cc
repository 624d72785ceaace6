// OpenLease, RenewLease, EndLease, ListLeases, and the lookup of the lease that a new session names.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/status_macros.h"
#include "base/task/task_queue_executor.h"
#include "server/fleet/fleet.h"
#include "server/rpc/calls.h"
#include "server/rpc/session_calls.h"
#include "server/session/client_leases.h"
#include "server/session/session_errors.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"

namespace gdn {
namespace {

using google::protobuf::util::TimeUtil;

constexpr int32_t kDefaultLeasePage = 50;
constexpr int32_t kMaxLeasePage = 1000;
constexpr std::string_view kLeasePageToken = "lease-after:";

void FillLease(const ClientLeases& leases, const ClientLease& lease, v1::Lease* out) {
  out->set_name(LeaseName(lease.id()));
  *out->mutable_grace() = TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(lease.grace()));
  const absl::Duration left = std::max(lease.end() - leases.clock().Now(), absl::ZeroDuration());
  *out->mutable_time_left() = TimeUtil::NanosecondsToDuration(absl::ToInt64Nanoseconds(left));
  out->set_sessions(lease.sessions());
}

ClientLeases& LeasesOf(const SessionParts& parts) { return parts.lookup.sessions.leases(); }

using FoundLease = absl::StatusOr<ClientLeasePtr>;
Task<FoundLease> Blocking(std::function<FoundLease()> call) { co_return call(); }

// Finds or changes a lease: `here` if this server has no fleet, else `shared`, on a thread that may wait for Redis.
Task<FoundLease> HereOrShared(const SessionParts& parts, const Caller& caller, std::function<FoundLease()> here,
                              std::function<FoundLease(FleetLeases&)> shared) {
  if (parts.lookup.fleet == nullptr) co_return here();
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  TaskQueueExecutor io(parts.states.transfer_threads(), caller.account->turn(), parts.timers);
  FleetLeases& leases = parts.lookup.fleet->leases();
  Task<FoundLease> call = Blocking([&]() -> FoundLease {
    GDN_RETURN_IF_ERROR(caller.deadline.Check(SteadyNow()));  // it has waited for the thread
    return shared(leases);
  });
  co_return co_await RunOn(io, std::move(call));
}

}  // namespace

Task<absl::StatusOr<ClientLeasePtr>> LeaseNamed(const SessionParts& parts, const Caller& caller, std::string name) {
  if (name.empty()) co_return ClientLeasePtr();
  GDN_CO_ASSIGN_OR_RETURN(const std::string_view parsed, ParseLeaseName(name));
  const std::string id(parsed);
  FoundLease here = LeasesOf(parts).Find(caller.principal, id);
  if (here.ok() || parts.lookup.fleet == nullptr) co_return here;
  Task<FoundLease> find =
      HereOrShared(parts, caller, nullptr, [&](FleetLeases& leases) { return leases.Find(caller.principal, id); });
  co_return co_await std::move(find);
}

Task<absl::Status> OpenLease(const SessionParts& parts, const Caller& caller, const v1::OpenLeaseRequest& request,
                             v1::OpenLeaseResponse* response) {
  GDN_CO_RETURN_IF_ERROR(CheckLeaseId(request.lease_id()));
  GDN_CO_ASSIGN_OR_RETURN(const absl::Duration grace, CheckGrace(request.has_grace(), request.grace()));
  const std::string id = request.lease_id().empty() ? RandomId() : request.lease_id();
  ClientLeases& leases = LeasesOf(parts);
  Task<FoundLease> open = HereOrShared(
      parts, caller, [&] { return leases.Open(caller.account, caller.principal, id, grace); },
      [&](FleetLeases& shared) { return shared.Open(caller.account, caller.principal, id, grace); });
  GDN_CO_ASSIGN_OR_RETURN(const ClientLeasePtr lease, co_await std::move(open));
  FillLease(leases, *lease, response->mutable_lease());
  spdlog::info("lease opened id={} grace={}{}", id, absl::FormatDuration(grace), TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

Task<absl::Status> RenewLease(const SessionParts& parts, const Caller& caller, const v1::RenewLeaseRequest& request,
                              v1::RenewLeaseResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::string_view parsed, ParseLeaseName(request.name()));
  const std::string id(parsed);
  ClientLeases& leases = LeasesOf(parts);
  Task<FoundLease> renew = HereOrShared(
      parts, caller, [&] { return leases.Renew(caller.principal, id); },
      [&](FleetLeases& shared) { return shared.Renew(caller.principal, id); });
  GDN_CO_ASSIGN_OR_RETURN(const ClientLeasePtr lease, co_await std::move(renew));
  FillLease(leases, *lease, response->mutable_lease());
  co_return absl::OkStatus();
}

Task<absl::Status> EndLease(const SessionParts& parts, const Caller& caller, const v1::EndLeaseRequest& request,
                            v1::EndLeaseResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::string_view parsed, ParseLeaseName(request.name()));
  const std::string id(parsed);
  Task<FoundLease> end = HereOrShared(
      parts, caller, [&] { return LeasesOf(parts).Find(caller.principal, id); },
      [&](FleetLeases& shared) { return shared.End(caller.principal, id); });
  GDN_CO_ASSIGN_OR_RETURN(const ClientLeasePtr lease, co_await std::move(end));
  Task<int64_t> ending = parts.lookup.sessions.EndLease(lease);
  response->set_ended_sessions(co_await std::move(ending));
  spdlog::info("lease ended id={} sessions={}{}", lease->id(), response->ended_sessions(), TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

absl::Status ListLeases(const SessionParts& parts, const Caller& caller, const v1::ListLeasesRequest& request,
                        v1::ListLeasesResponse* response) {
  if (request.page_size() < 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                     StrCat("page_size is ", request.page_size(), ", expected 0 (default) .. ", kMaxLeasePage),
                     {{"field", "page_size"}});
  }
  std::string_view after = request.page_token();
  if (!after.empty()) {
    const bool has_prefix = after.substr(0, kLeasePageToken.size()) == kLeasePageToken;
    if (has_prefix) after.remove_prefix(kLeasePageToken.size());
    if (!has_prefix || after.empty() || !CheckLeaseId(after).ok()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidPageToken,
                       "page_token is not one that ListLeases returned; send next_page_token unchanged, or none");
    }
  }
  const int32_t wanted = request.page_size() == 0 ? kDefaultLeasePage : std::min(request.page_size(), kMaxLeasePage);
  ClientLeases& leases = LeasesOf(parts);
  // One more than the page needs, to know whether there is another page.
  const std::vector<ClientLeasePtr> listed =
      leases.List(caller.principal, std::string(after), static_cast<size_t>(wanted) + 1);
  const size_t shown = std::min(listed.size(), static_cast<size_t>(wanted));
  for (size_t i = 0; i < shown; ++i) FillLease(leases, *listed[i], response->add_leases());
  if (listed.size() > shown) response->set_next_page_token(StrCat(kLeasePageToken, listed[shown - 1]->id()));
  return absl::OkStatus();
}

}  // namespace gdn
