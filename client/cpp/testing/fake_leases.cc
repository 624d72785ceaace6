// FakeGdnService: leases. They never end by time; EndLease simulates that.
#include <string>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"

namespace gdn {
namespace {

absl::Status NoSuchLease(const std::string& name) {
  return MakeError(absl::StatusCode::kNotFound, reason::kLeaseNotFound, StrCat("no lease named '", name, "'"),
                   {{"lease", name}});
}

}  // namespace

absl::Status FakeGdnService::CheckLease(const std::string& name) const {
  if (name.empty()) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(ParseLeaseName(name).status());
  return leases_.contains(name) ? absl::OkStatus() : NoSuchLease(name);
}

void FakeGdnService::DescribeLease(const std::string& name, v1::Lease* out) const {
  out->set_name(name);
  *out->mutable_grace() = leases_.at(name);
  *out->mutable_time_left() = leases_.at(name);
  for (const auto& [id, session] : sessions_) out->set_sessions(out->sessions() + (session.lease == name ? 1 : 0));
}

grpc::Status FakeGdnService::OpenLease(Context*, const v1::OpenLeaseRequest* request, v1::OpenLeaseResponse* response) {
  return Call("OpenLease", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(CheckLeaseId(request->lease_id()));
    GDN_ASSIGN_OR_RETURN(const absl::Duration grace, CheckGrace(request->has_grace(), request->grace()));
    google::protobuf::Duration shown;
    shown.set_seconds(absl::ToInt64Seconds(grace));
    shown.set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(grace - absl::Seconds(shown.seconds()))));
    const std::string name =
        LeaseName(request->lease_id().empty() ? StrCat("unnamed-", leases_.size()) : request->lease_id());
    const auto [entry, made] = leases_.emplace(name, shown);
    if (!made && (entry->second.seconds() != shown.seconds() || entry->second.nanos() != shown.nanos())) {
      return MakeError(absl::StatusCode::kAlreadyExists, reason::kLeaseExists, StrCat(name, " has another grace"),
                       {{"lease", name}});
    }
    DescribeLease(name, response->mutable_lease());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::RenewLease(Context*, const v1::RenewLeaseRequest* request,
                                        v1::RenewLeaseResponse* response) {
  return Call("RenewLease", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(ParseLeaseName(request->name()).status());
    GDN_RETURN_IF_ERROR(CheckLease(request->name()));
    DescribeLease(request->name(), response->mutable_lease());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::EndLease(Context*, const v1::EndLeaseRequest* request, v1::EndLeaseResponse* response) {
  return Call("EndLease", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(ParseLeaseName(request->name()).status());
    GDN_RETURN_IF_ERROR(CheckLease(request->name()));
    leases_.erase(request->name());
    response->set_ended_sessions(static_cast<int64_t>(
        std::erase_if(sessions_, [&](const auto& entry) { return entry.second.lease == request->name(); })));
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::ListLeases(Context*, const v1::ListLeasesRequest*, v1::ListLeasesResponse* response) {
  return Call("ListLeases", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    for (const auto& [name, grace] : leases_) DescribeLease(name, response->add_leases());
    return absl::OkStatus();
  });
}

}  // namespace gdn
