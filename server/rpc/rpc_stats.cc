#include "server/rpc/rpc_stats.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/string_cat.h"
#include "server/trace/call_trace.h"

namespace gdn {

void RpcStats::Count(RpcMethod method, const absl::Status& status, int64_t nanos) {
  const auto code = std::min(static_cast<size_t>(status.raw_code()), kStatusCodes - 1);
  latency_[static_cast<size_t>(method)][code].Observe(nanos);
  if (!status.ok()) CountError(status);
}

void RpcStats::CountError(const absl::Status& status) { CountReason(ErrorReason(status)); }

void RpcStats::CountReason(std::string_view name) {
  v1::ErrorReason reason = v1::ERROR_REASON_INTERNAL;
  if (!v1::ErrorReason_Parse(StrCat("ERROR_REASON_", name), &reason)) {
    reason = v1::ERROR_REASON_INTERNAL;
  }
  errors_[static_cast<size_t>(reason)].fetch_add(1, std::memory_order_relaxed);
}

RpcMeter::RpcMeter(RpcStats& stats, RpcMethod method) : stats_(&stats), method_(method), begin_ns_(TraceNow()) {}

void RpcMeter::End(const absl::Status& status) const { stats_->Count(method_, status, TraceNow() - begin_ns_); }

}  // namespace gdn
