// Who is calling, and until when.
//
// The principal is an identity, not a permission: sessions made under one `authorization` metadata value (or one TLS
// client identity) are not to be seen under another. Whether a caller may come at all is for a proxy in front, or
// mutual TLS, to decide.
// Thread safety: a free function on the call's context.
//
//   const Caller caller = CallerOf(*context, service.principals);
#pragma once

#include <string>

#include <grpcpp/server_context.h>

#include "base/steady_clock.h"
#include "server/rpc/principals.h"

namespace gdn {

struct Caller {
  std::string principal;  // "" for an anonymous one; never the token itself: Principals' name for it
  SteadyTime deadline;
};

Caller CallerOf(const grpc::CallbackServerContext& context, const Principals& principals);

}  // namespace gdn
