// Who is calling, and until when.
//
// The principal is an identity, not a permission: sessions made under one `authorization` metadata value (or one TLS
// client identity) are not to be seen under another. Whether a caller may come at all is for a proxy in front, or
// mutual TLS, to decide.
// Thread safety: free functions on the call's context.
//
//   const std::string principal = PrincipalOf(*context);
#pragma once

#include <string>

#include <grpcpp/server_context.h>

#include "absl/time/time.h"

namespace gdn {

// "" for an anonymous caller. Never the token itself: a digest of it.
std::string PrincipalOf(const grpc::CallbackServerContext& context);

absl::Time DeadlineOf(const grpc::CallbackServerContext& context);

}  // namespace gdn
