// A call's place in its client's distributed trace, as the W3C Trace Context recommendation has it: metadata
// "traceparent", 00-TRACE_ID-PARENT_ID-FLAGS in lower-case hexadecimal digits.
//
// Thread safety: free functions, plain values.
//
//   if (const auto context = ParseTraceparent(header)) Answer(ToTraceparent(*context));
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace gdn {

struct TraceContext {
  std::string trace_id;   // 32 digits
  std::string parent_id;  // 16: the client's span
  std::string span_id;    // 16: this call's, made here
  std::string flags;      // 2, as they came
};
using TraceContextPtr = std::shared_ptr<const TraceContext>;  // null: the call brought none

// With a new span of its own. Nothing where the text is malformed; of a version above 00, what version 00 knows.
std::optional<TraceContext> ParseTraceparent(std::string_view text);
// For whoever goes on from the call: its own span is the parent.
std::string ToTraceparent(const TraceContext& context);
// " trace_id=.. span_id=..", for a line of the log; "" without one.
std::string TraceForLog(const TraceContextPtr& context);

}  // namespace gdn
