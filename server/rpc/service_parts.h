// The parts of the server that calls use, one struct for each kind of call. Only the assembly and the service see all
// of them; a call is given those of its kind.
//
// Thread safety: constant; what it names is safe from any thread. Ownership: borrows; GdnServer owns the parts.
//
//   const ServiceParts parts{.common = common, .steps = {.common = common, ...}, ...};
//   const auto server = RpcServer::Start(parts, {"127.0.0.1:0"});
//   CreateSession(parts.Of<SessionParts>(), caller, request, &response);
#pragma once

#include <tuple>

#include "server/rpc/common_parts.h"
#include "server/rpc/info_calls.h"
#include "server/rpc/reactors.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/steps/call_rows.h"

namespace gdn {

struct ServiceParts {
  CommonParts common;
  StepParts steps;
  SessionParts sessions;
  StreamParts streams;
  InfoParts info;
  AdminParts admin;

  // Returns the member whose type is Parts.
  template <typename Parts>
  const Parts& Of() const {
    return std::get<const Parts&>(std::tie(common, steps, sessions, streams, info, admin));
  }
};

}  // namespace gdn
