#include "server/trace/trace_context.h"

#include <algorithm>

#include "base/random_id.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kSize = 55;  // length of a traceparent of version 00

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

bool IsZero(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return c == '0'; });
}

}  // namespace

std::optional<TraceContext> ParseTraceparent(std::string_view text) {
  if (text.size() < kSize || text[2] != '-' || text[35] != '-' || text[52] != '-') return std::nullopt;
  const std::string_view version = text.substr(0, 2);
  const std::string_view trace_id = text.substr(3, 32);
  const std::string_view parent_id = text.substr(36, 16);
  const std::string_view flags = text.substr(53, 2);
  if (!IsHex(version) || !IsHex(trace_id) || !IsHex(parent_id) || !IsHex(flags)) return std::nullopt;
  if (version == "ff" || IsZero(trace_id) || IsZero(parent_id)) return std::nullopt;
  if (text.size() > kSize && (version == "00" || text[kSize] != '-')) return std::nullopt;
  return TraceContext{.trace_id = std::string(trace_id),
                      .parent_id = std::string(parent_id),
                      .span_id = RandomId().substr(0, 16),
                      .flags = std::string(flags)};
}

std::string ToTraceparent(const TraceContext& context) {
  return StrCat("00-", context.trace_id, "-", context.span_id, "-", context.flags);
}

std::string TraceForLog(const TraceContextPtr& context) {
  return context == nullptr ? "" : StrCat(" trace_id=", context->trace_id, " span_id=", context->span_id);
}

}  // namespace gdn
