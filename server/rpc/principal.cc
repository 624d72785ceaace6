#include "server/rpc/principal.h"

#include <grpcpp/security/auth_context.h>

#include <chrono>
#include <string_view>

#include "base/hash.h"

namespace gdn {

std::string PrincipalOf(const grpc::CallbackServerContext& context) {
  Hasher hasher;
  bool known = false;
  if (const auto auth = context.auth_context(); auth != nullptr && auth->IsPeerAuthenticated()) {
    for (const grpc::string_ref& identity : auth->GetPeerIdentity()) {
      hasher.UpdateField({identity.data(), identity.size()});
      known = true;
    }
  }
  const auto [begin, end] = context.client_metadata().equal_range("authorization");
  for (auto it = begin; it != end; ++it) {
    hasher.UpdateField({it->second.data(), it->second.size()});
    known = true;
  }
  return known ? hasher.Finish().ToHex() : std::string();
}

absl::Time DeadlineOf(const grpc::CallbackServerContext& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  return deadline == std::chrono::system_clock::time_point::max() ? absl::InfiniteFuture() : absl::FromChrono(deadline);
}

}  // namespace gdn
