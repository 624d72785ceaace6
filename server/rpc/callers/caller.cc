#include "server/rpc/callers/caller.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/security/auth_context.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/security/reasons.h"

namespace gdn {

namespace {

TraceContextPtr TraceOf(grpc::CallbackServerContext& call) {
  const auto& metadata = call.client_metadata();
  if (metadata.count("traceparent") != 1) return nullptr;  // if there are several, none can be trusted
  const grpc::string_ref text = metadata.find("traceparent")->second;
  auto context = ParseTraceparent({text.data(), text.size()});
  if (!context.has_value()) return nullptr;
  call.AddTrailingMetadata("traceparent", ToTraceparent(*context));
  return std::make_shared<const TraceContext>(*std::move(context));
}

std::vector<std::string_view> ValuesOf(const grpc::CallbackServerContext& call, const char* key) {
  std::vector<std::string_view> values;
  const auto [begin, end] = call.client_metadata().equal_range(key);
  for (auto it = begin; it != end; ++it) values.emplace_back(it->second.data(), it->second.size());
  return values;
}

std::string CertificateSubjectOf(const grpc::CallbackServerContext& call) {
  const auto auth = call.auth_context();
  if (auth == nullptr || !auth->IsPeerAuthenticated()) return "";
  const auto values = [&auth](const char* property) {
    std::vector<std::string_view> texts;
    for (const grpc::string_ref& value : auth->FindPropertyValues(property))
      texts.emplace_back(value.data(), value.size());
    return texts;
  };
  return std::string(CertificateSubject(values(GRPC_PEER_URI_PROPERTY_NAME), values(GRPC_X509_CN_PROPERTY_NAME)));
}

absl::StatusOr<Identity> LogIn(const grpc::CallbackServerContext& call, const Authenticator& authenticator) {
  const std::string certificate = CertificateSubjectOf(call);
  return authenticator.LogIn({.authorization = ValuesOf(call, "authorization"),
                              .claims = ValuesOf(call, kVerifiedSubjectKey),
                              .certificate = certificate});
}

// The principal of a caller if callers need not log in.
std::string NameOfAnybody(const grpc::CallbackServerContext& call, const Access& access) {
  const auto auth = call.auth_context();
  std::vector<grpc::string_ref> identity;
  if (auth != nullptr && auth->IsPeerAuthenticated()) identity = auth->GetPeerIdentity();
  std::vector<std::string_view> fields;
  for (const grpc::string_ref& part : identity) fields.emplace_back(part.data(), part.size());
  for (const std::string_view value : ValuesOf(call, "authorization")) fields.push_back(value);
  return access.principals.NameOf(fields);
}

void TakeIdentity(const Identity& identity, int64_t version, const Access& access, Caller& caller) {
  caller.subject = identity.subject;
  caller.admin = identity.admin;
  caller.expires = identity.expires;
  caller.login_version = version;
  caller.principal = access.principals.NameOfListed(identity.subject);
}

}  // namespace

absl::Status CheckAdmin(const Caller& caller, std::string_view what) {
  if (caller.admin) return absl::OkStatus();
  return MakeError(absl::StatusCode::kPermissionDenied, reason::kPermissionDenied,
                   StrCat(what, " needs the role admin"));
}

void Audit(const Access& access, const Caller& caller, std::string_view event, std::string_view name,
           std::string_view owner) {
  if (access.audit == nullptr) return;
  const std::pair<std::string_view, std::string_view> subject("subject", caller.subject), peer("peer", caller.peer);
  if (name.empty()) return access.audit->Write(event, {subject, peer});
  const std::pair<std::string_view, std::string_view> named(name.starts_with("leases/") ? "lease" : "session", name);
  if (owner.empty()) return access.audit->Write(event, {subject, peer, named});
  access.audit->Write(event, {subject, peer, named, {"owner", owner}});
}

absl::Status StillAllowed(grpc::CallbackServerContext& call, const Access& access, const Caller& caller) {
  if (!caller.allowed.ok() || access.authenticator == nullptr) return caller.allowed;
  if (absl::Now() < caller.expires && access.authenticator->version() == caller.login_version) return absl::OkStatus();
  GDN_ASSIGN_OR_RETURN(const Identity identity, LogIn(call, *access.authenticator));
  if (identity.subject == caller.subject) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnauthenticated, reason::kUnauthenticated,
                   "the token now belongs to another subject; open a new stream");
}

Caller CallerOf(grpc::CallbackServerContext& call, const Access& access, const CancelSource& gone) {
  const auto deadline = call.deadline();
  const bool never = deadline == std::chrono::system_clock::time_point::max();
  Caller caller{.deadline =
                    never ? gone.Never() : gone.Until(SteadyNow() + (absl::FromChrono(deadline) - absl::Now()))};
  if (access.authenticator == nullptr) {
    caller.principal = NameOfAnybody(call, access);
  } else {
    const int64_t version =
        access.authenticator->version();  // read before the login: if the list changes meanwhile, it is checked again
    const absl::StatusOr<Identity> identity = LogIn(call, *access.authenticator);
    caller.allowed = identity.status();
    if (identity.ok()) {
      TakeIdentity(*identity, version, access, caller);
      caller.peer = call.peer();
    } else {
      access.audit->WriteRefusal(ErrorReason(identity.status()), call.peer());
    }
  }
  caller.account = access.ledger.AccountOf(caller.principal, call.peer());
  if (!caller.subject.empty() && !caller.account->listed()) {
    access.ledger.List(caller.principal, /*weight=*/1);  // a subject has one account, whatever address it calls from
    access.owners.Learn(caller.principal, caller.subject);
    caller.account = access.ledger.AccountOf(caller.principal, call.peer());
  }
  caller.trace = TraceOf(call);
  return caller;
}

}  // namespace gdn
