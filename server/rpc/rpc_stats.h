// Counters of the service's calls: latency by method and status code, and errors by reason.
//
// Each step of a step stream counts as a call. Other streams count as one call. A call's time runs from its arrival at
// the server until its reply or end is handed to the transport.
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
#include "server/rpc/rpc_methods.h"

namespace gdn {

inline constexpr size_t kStatusCodes = 17;  // OK and gRPC's sixteen

class RpcStats {
 public:
  void Count(RpcMethod method, const absl::Status& status, int64_t nanos);
  // Counts an error by its reason: that of a row or an entry in a call that ended with OK. Count does this for the
  // error of a call. `status` must not be OK.
  void CountError(const absl::Status& status);
  // Counts an error by the name of its reason, as in ErrorInfo. An unknown name counts as INTERNAL.
  void CountReason(std::string_view name);

  const LatencyHistogram& latency(RpcMethod method, size_t code) const {
    return latency_[static_cast<size_t>(method)][code];
  }
  // Returns how many errors, of calls and of single rows or entries, had the v1::ErrorReason of this number. Errors
  // without a reason count as INTERNAL, which is what the caller gets.
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
