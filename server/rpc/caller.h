// Who is calling, and until when.
//
// The principal is an identity, not a permission: sessions made under one `authorization` metadata value (or one TLS
// client identity) are not to be seen under another. Whether a caller may come at all is for a proxy in front, or
// mutual TLS, to decide.
// Thread safety: a free function on the call's context.
//
//   const Caller caller = CallerOf(*call, context);
#pragma once

#include <string>

#include <grpcpp/server_context.h>

#include "server/admission/byte_ledger.h"
#include "server/rpc/service_context.h"
#include "server/session/wait_limit.h"
#include "server/trace/trace_context.h"

namespace gdn {

struct Caller {
  std::string principal;        // "" for an anonymous one; never the token itself: Principals' name for it
  WaitLimit limit;              // until its deadline, and while its client is there; for as long as the call is open
  ByteAccountPtr account = {};  // what its calls pin is charged to
  TraceContextPtr trace = {};   // of the client's "traceparent"; null without one
};

// Answers a "traceparent" with the call's own, in the trailing metadata.
Caller CallerOf(grpc::CallbackServerContext& call, const ServiceContext& service);

}  // namespace gdn
