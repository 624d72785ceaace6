// Lists of the service's methods. Counters and the service itself are generated from them.
//
// Thread safety: constants.
//
//   for (const std::string_view name : kRpcMethodNames) page.Add(name);
#pragma once

#include <array>
#include <string_view>

namespace gdn {

// Unary methods that the function of the same name answers (server/rpc/calls.h). Those of the first list are plain
// functions, those of the second are tasks.
#define GDN_IMMEDIATE_METHODS(X) \
  X(GetServerInfo)               \
  X(ListModels)                  \
  X(GetModel)                    \
  X(GetSession)                  \
  X(ListSessions)                \
  X(PrefetchSessions)            \
  X(DropPrefixes)                \
  X(TraceCalls)                  \
  X(GetMetrics)
#define GDN_TASK_METHODS(X) \
  X(CreateSession)          \
  X(DeleteSession)          \
  X(ForkSession)            \
  X(CheckpointSession)      \
  X(RestoreCheckpoint)      \
  X(ListCheckpoints)        \
  X(DeleteCheckpoint)       \
  X(AcceptTokens)           \
  X(KeepPrefix)             \
  X(EvictSession)           \
  X(Drain)
// Methods with a reactor of their own (server/rpc/reactors.h).
#define GDN_REACTOR_METHODS(X) \
  X(Prefill) X(Decode) X(StreamPrefill) X(StreamDecode) X(ExportState) X(ImportState) X(WatchState)
#define GDN_RPC_METHODS(X) GDN_IMMEDIATE_METHODS(X) GDN_TASK_METHODS(X) GDN_REACTOR_METHODS(X) X(ShareMemory)

enum class RpcMethod {
#define GDN_ENUMERATOR(Name) k##Name,
  GDN_RPC_METHODS(GDN_ENUMERATOR)
#undef GDN_ENUMERATOR
};
inline constexpr std::array kRpcMethodNames = {
#define GDN_NAME(Name) std::string_view(#Name),
    GDN_RPC_METHODS(GDN_NAME)
#undef GDN_NAME
};

}  // namespace gdn
