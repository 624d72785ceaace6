// The process's log: one line an event on stderr, as text or as JSON.
//
// Thread safety: call once, before other threads start; spdlog is safe from then on.
//
//   InitLogging({.format = "json", .level = "info"});
//   spdlog::info("session created id={}", id);
#pragma once

#include <string>

namespace gdn {

struct LoggingOptions {
  std::string format = "text";  // "text" or "json"
  std::string level = "info";   // "trace", "debug", "info", "warn", "error", "critical" or "off"
};

void InitLogging(const LoggingOptions& options);

}  // namespace gdn
