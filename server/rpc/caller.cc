#include "server/rpc/caller.h"

#include <grpcpp/security/auth_context.h>

#include <chrono>

#include "base/hash.h"

namespace gdn {

Caller CallerOf(const grpc::CallbackServerContext& context) {
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
  const auto deadline = context.deadline();
  const bool never = deadline == std::chrono::system_clock::time_point::max();
  return {.principal = known ? hasher.Finish().ToHex() : "",
          .deadline = never ? absl::InfiniteFuture() : absl::FromChrono(deadline)};
}

}  // namespace gdn
