// Lists of the service's methods. Counters and the service itself are generated from them.
//
// Thread safety: constants.
//
//   for (const std::string_view name : kRpcMethodNames) page.Add(name);
#pragma once

#include <array>
#include <string_view>

namespace gdn {

// Each list calls X(Name, Parts) for its methods; Parts: the parts that the method's function is given
// (server/rpc/service_parts.h). In the first two lists are the unary methods that the function of the same name answers
// (server/rpc/calls.h). Functions of the first list are plain, and those of the second are tasks.
#define GDN_IMMEDIATE_METHODS(X)    \
  X(GetServerInfo, InfoParts)       \
  X(ListModels, InfoParts)          \
  X(GetModel, InfoParts)            \
  X(GetSession, SessionParts)       \
  X(ListSessions, SessionParts)     \
  X(ListLeases, SessionParts)       \
  X(PrefetchSessions, SessionParts) \
  X(DropPrefixes, SessionParts)     \
  X(ListSnapshots, SessionParts)    \
  X(TraceCalls, CommonParts)        \
  X(GetMetrics, AdminParts)
#define GDN_TASK_METHODS(X)          \
  X(CreateSession, SessionParts)     \
  X(DeleteSession, SessionParts)     \
  X(ForkSession, SessionParts)       \
  X(CreateSessions, SessionParts)    \
  X(DeleteSessions, SessionParts)    \
  X(ForkSessions, SessionParts)      \
  X(ResetSessions, SessionParts)     \
  X(OpenLease, SessionParts)         \
  X(RenewLease, SessionParts)        \
  X(EndLease, SessionParts)          \
  X(CheckpointSession, SessionParts) \
  X(RestoreCheckpoint, SessionParts) \
  X(ListCheckpoints, SessionParts)   \
  X(DeleteCheckpoint, SessionParts)  \
  X(AcceptTokens, StepParts)         \
  X(KeepPrefix, SessionParts)        \
  X(SnapshotSession, SessionParts)   \
  X(SnapshotSessions, SessionParts)  \
  X(DeleteSnapshots, SessionParts)   \
  X(EvictSession, SessionParts)      \
  X(Drain, AdminParts)
// The same for methods with a reactor of their own (server/rpc/reactors.h).
#define GDN_REACTOR_METHODS(X) \
  X(Prefill, StepParts)        \
  X(Decode, StepParts)         \
  X(Step, StepParts)           \
  X(StreamPrefill, StepParts)  \
  X(StreamDecode, StepParts)   \
  X(StreamStep, StepParts)     \
  X(ExportState, StreamParts)  \
  X(ImportState, StreamParts)  \
  X(WatchState, StreamParts)
#define GDN_RPC_METHODS(X) \
  GDN_IMMEDIATE_METHODS(X) GDN_TASK_METHODS(X) GDN_REACTOR_METHODS(X) X(ShareMemory, StreamParts)

enum class RpcMethod {
#define GDN_ENUMERATOR(Name, Parts) k##Name,
  GDN_RPC_METHODS(GDN_ENUMERATOR)
#undef GDN_ENUMERATOR
};
inline constexpr std::array kRpcMethodNames = {
#define GDN_NAME(Name, Parts) std::string_view(#Name),
    GDN_RPC_METHODS(GDN_NAME)
#undef GDN_NAME
};

}  // namespace gdn
