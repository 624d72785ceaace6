// How the service's calls ended: how long they took by method and code, and errors by reason.
//
// A step of a stream counts as a call; of other streams, the whole call does. A call's time is from when the server
// hears of it to when its end, or its reply, is handed to the transport.
// Thread safety: safe from any thread. Ownership: must outlive the meters, which are plain values.
//
//   RpcMeter meter(stats, RpcMethod::kDecode);
//   ...
//   meter.End(status);  // once
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "base/histogram.h"
#include "gdn/v1/errors.pb.h"

namespace gdn {

#define GDN_RPC_METHODS(X) \
  X(GetServerInfo)         \
  X(ListModels)            \
  X(GetModel)              \
  X(CreateSession)         \
  X(GetSession)            \
  X(ListSessions)          \
  X(DeleteSession)         \
  X(ForkSession)           \
  X(CheckpointSession)     \
  X(RestoreCheckpoint)     \
  X(ListCheckpoints)       \
  X(DeleteCheckpoint)      \
  X(AcceptTokens)          \
  X(PrefetchSessions)      \
  X(KeepPrefix)            \
  X(DropPrefixes)          \
  X(EvictSession)          \
  X(ShareMemory)           \
  X(TraceCalls)            \
  X(GetMetrics)            \
  X(Drain) X(Prefill) X(Decode) X(StreamPrefill) X(StreamDecode) X(ExportState) X(ImportState) X(WatchState)

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
#undef GDN_RPC_METHODS

inline constexpr size_t kStatusCodes = 17;  // OK and gRPC's sixteen

class RpcStats {
 public:
  void Count(RpcMethod method, const absl::Status& status, int64_t nanos);
  // Of a call, or of a row whose call has ended well.
  void CountError(const absl::Status& status);

  const LatencyHistogram& latency(RpcMethod method, size_t code) const {
    return latency_[static_cast<size_t>(method)][code];
  }
  // By the number of v1::ErrorReason; those without a reason are INTERNAL, as they are for the caller.
  int64_t errors(int reason) const { return errors_[static_cast<size_t>(reason)].load(std::memory_order_relaxed); }

 private:
  std::array<std::array<LatencyHistogram, kStatusCodes>, kRpcMethodNames.size()> latency_;
  std::array<std::atomic<int64_t>, v1::ErrorReason_ARRAYSIZE> errors_ = {};
};

class RpcMeter {
 public:
  RpcMeter(RpcStats& stats, RpcMethod method);
  void End(const absl::Status& status) const;

 private:
  RpcStats* stats_;
  RpcMethod method_;
  int64_t begin_ns_;
};

}  // namespace gdn
