// A call's place in its client's distributed trace (W3C Trace Context). The client sends it as metadata "traceparent":
// 00-TRACE_ID-PARENT_ID-FLAGS in lower-case hexadecimal digits.
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
  std::string parent_id;  // 16 digits: the client's span
  std::string span_id;    // 16 digits: this call's span, made here
  std::string flags;      // 2 digits, as received
};
using TraceContextPtr = std::shared_ptr<const TraceContext>;  // null: the call has no traceparent

// Reads a traceparent and makes a span id for the call. Returns nothing if the text is malformed. If the version is
// above 00, only the fields that version 00 has are read.
std::optional<TraceContext> ParseTraceparent(std::string_view text);
// Returns the traceparent, of version 00, for requests that this call makes itself: their parent is this call's span.
std::string ToTraceparent(const TraceContext& context);
// Returns " trace_id=.. span_id=.." for a log line, or "" for null.
std::string TraceForLog(const TraceContextPtr& context);

}  // namespace gdn
