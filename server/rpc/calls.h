// The functions that answer the unary methods other than Prefill and Decode, one file for each subject (models,
// sessions, many sessions, states, forks, snapshots, drafts, prefixes, traces, admins). Each is given the parts that
// rpc_methods.h lists for it.
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
#include "gdn/v1/prefix.pb.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/snapshot.pb.h"
#include "gdn/v1/state.pb.h"
#include "gdn/v1/trace.pb.h"
#include "server/rpc/callers/caller.h"
#include "server/rpc/rpc_methods.h"

namespace gdn {

struct AdminParts;    // info_calls.h
struct CommonParts;   // common_parts.h
struct InfoParts;     // info_calls.h
struct SessionParts;  // session_calls.h
struct StepParts;     // call_rows.h

// Declares one function for each method.
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
