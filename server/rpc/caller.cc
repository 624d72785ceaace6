#include "server/rpc/caller.h"

#include <grpcpp/security/auth_context.h>

#include <chrono>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"

namespace gdn {

namespace {

TraceContextPtr TraceOf(grpc::CallbackServerContext& call) {
  const auto& metadata = call.client_metadata();
  if (metadata.count("traceparent") != 1) return nullptr;  // of several nobody knows which holds
  const grpc::string_ref text = metadata.find("traceparent")->second;
  auto context = ParseTraceparent({text.data(), text.size()});
  if (!context.has_value()) return nullptr;
  call.AddTrailingMetadata("traceparent", ToTraceparent(*context));
  return std::make_shared<const TraceContext>(*std::move(context));
}

}  // namespace

Caller CallerOf(grpc::CallbackServerContext& call, const ServiceContext& service) {
  const auto auth = call.auth_context();
  std::vector<grpc::string_ref> identity;
  if (auth != nullptr && auth->IsPeerAuthenticated()) identity = auth->GetPeerIdentity();
  std::vector<std::string_view> fields;
  for (const grpc::string_ref& part : identity) fields.emplace_back(part.data(), part.size());
  const auto [begin, end] = call.client_metadata().equal_range("authorization");
  for (auto it = begin; it != end; ++it) fields.emplace_back(it->second.data(), it->second.size());
  const auto deadline = call.deadline();
  const bool never = deadline == std::chrono::system_clock::time_point::max();
  Caller caller{
      .principal = service.principals.NameOf(fields),
      .limit = {never ? SteadyTime::InfiniteFuture() : SteadyNow() + (absl::FromChrono(deadline) - absl::Now()),
                [&call] { return call.IsCancelled(); }}};
  caller.account = service.ledger.AccountOf(caller.principal, call.peer());
  caller.trace = TraceOf(call);
  return caller;
}

}  // namespace gdn
