// The functions that answer the unary methods of GDN_IMMEDIATE_METHODS and GDN_TASK_METHODS (server/rpc/rpc_methods.h),
// one source file for each subject (models, sessions, many sessions, leases, states, forks, snapshots, drafts,
// prefixes, traces, admins). Each function is given the parts that rpc_methods.h lists for its method. Steps (Prefill,
// Decode, Step), streams, and transfers of states and memory have reactors instead (server/rpc/reactors.h).
//
// Thread safety: free functions; a task belongs to its call's flow. Ownership: parts, caller, request and response must
// outlive the task.
//
//   Task<absl::Status> answer = CreateSession(parts, caller, request, &response);
//   const absl::Status status = co_await std::move(answer);
#pragma once

#include "absl/status/status.h"
#include "base/task/task.h"
#include "gdn/v1/admin.pb.h"
#include "gdn/v1/batch.pb.h"
#include "gdn/v1/info.pb.h"
#include "gdn/v1/lease.pb.h"
#include "gdn/v1/prefix.pb.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/snapshot.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/trace.pb.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/rpc_methods.h"

namespace gdn {

struct AdminParts;    // server/rpc/info_calls.h
struct CommonParts;   // server/rpc/common_parts.h
struct InfoParts;     // server/rpc/info_calls.h
struct SessionParts;  // server/rpc/session_calls.h
struct StepParts;     // server/rpc/steps/call_rows.h

// Declare one function for each immediate and each task method of rpc_methods.h, with the parts that it is given. The
// result is the call's status; `response` is sent only if that is OK.
#define GDN_DECLARE_IMMEDIATE(Name, Parts)                                                      \
  absl::Status Name(const Parts& parts, const Caller& caller, const v1::Name##Request& request, \
                    v1::Name##Response* response);
#define GDN_DECLARE_TASK(Name, Parts)                                                                 \
  Task<absl::Status> Name(const Parts& parts, const Caller& caller, const v1::Name##Request& request, \
                          v1::Name##Response* response);
GDN_IMMEDIATE_METHODS(GDN_DECLARE_IMMEDIATE)
GDN_TASK_METHODS(GDN_DECLARE_TASK)
#undef GDN_DECLARE_IMMEDIATE
#undef GDN_DECLARE_TASK

}  // namespace gdn
