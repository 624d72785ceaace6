// TraceCalls.
#include <algorithm>

#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/calls.h"
#include "server/rpc/common_parts.h"
#include "server/rpc/transport/rpc_status.h"

namespace gdn {
namespace {

v1::TraceStage ToProto(TraceStage stage) {
  switch (stage) {
    case TraceStage::kParse:
      return v1::TRACE_STAGE_PARSE;
    case TraceStage::kAdmit:
      return v1::TRACE_STAGE_ADMIT;
    case TraceStage::kQueue:
      return v1::TRACE_STAGE_QUEUE;
    case TraceStage::kCopyIn:
      return v1::TRACE_STAGE_COPY_IN;
    case TraceStage::kLaunch:
      return v1::TRACE_STAGE_LAUNCH;
    case TraceStage::kCompute:
      return v1::TRACE_STAGE_COMPUTE;
    case TraceStage::kCopyOut:
      return v1::TRACE_STAGE_COPY_OUT;
    case TraceStage::kCommit:
      return v1::TRACE_STAGE_COMMIT;
    case TraceStage::kReply:
      return v1::TRACE_STAGE_REPLY;
  }
  return v1::TRACE_STAGE_UNSPECIFIED;
}

void Fill(const CallTrace& call, v1::CallTrace* out) {
  out->set_method(call.method);
  out->set_session(call.session);
  out->set_layer(call.layer);
  out->set_rows(call.rows);
  out->set_tokens(call.tokens);
  out->set_request_bytes(call.request_bytes);
  out->set_response_bytes(call.response_bytes);
  out->set_launches(call.launch_count);
  if (!call.status.ok()) *out->mutable_status() = ToRpcStatus(call.status);
  const int64_t begin_time = absl::ToUnixNanos(call.begin_time);
  out->mutable_begin_time()->set_seconds(begin_time / 1'000'000'000);
  out->mutable_begin_time()->set_nanos(static_cast<int32_t>(begin_time % 1'000'000'000));
  out->set_begin_ns(call.begin());
  out->set_duration_ns(call.duration());
  if (call.context != nullptr) {
    out->set_trace_id(call.context->trace_id);
    out->set_span_id(call.context->span_id);
    out->set_parent_span_id(call.context->parent_id);
  }
  for (const TracedStage& stage : call.stages()) {
    v1::CallStage* const to = out->add_stages();
    to->set_stage(ToProto(stage.stage));
    to->set_begin_ns(stage.begin_ns - call.begin());
    to->set_duration_ns(stage.end_ns - stage.begin_ns);
    to->set_thread(stage.thread);
  }
}

absl::Status OutOfRange(std::string_view field, int32_t value, std::string_view expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat(field, " is ", value, ", expected ", expected), {{"field", std::string(field)}});
}

}  // namespace

absl::Status TraceCalls(const CommonParts& parts, const Caller& caller, const v1::TraceCallsRequest& request,
                        v1::TraceCallsResponse* response) {
  if (request.has_keep() && (request.keep() < 0 || request.keep() > kMostTracedCalls)) {
    return OutOfRange("keep", request.keep(), StrCat("0 (off) .. ", kMostTracedCalls));
  }
  if (request.has_keep() && parts.access.authenticator != nullptr) {
    GDN_RETURN_IF_ERROR(CheckAdmin(caller, "setting keep"));
  }
  if (request.max_calls() < 0) return OutOfRange("max_calls", request.max_calls(), "0 (all) or more");
  for (const auto& call : parts.tracer.Calls(caller.principal, request.max_calls())) {
    Fill(*call, response->add_calls());
  }
  if (request.has_keep()) parts.tracer.Keep(request.keep());
  response->set_kept(parts.tracer.kept());
  return absl::OkStatus();
}

}  // namespace gdn
