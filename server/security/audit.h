// The audit log: lines that say who did what. They go to a logger of their own, `audit`, beside the server's.
//
//   audit event=session_created subject="alice" peer="ipv4:10.0.0.7:41234" session="chat-1"
// Thread safety: safe from any thread. Ownership: none. Lines are written at every log level except off.
//
//   audit.Write("session_created", {{"subject", "alice"}, {"session", "chat-1"}});
#pragma once

#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/threads/steady_clock.h"

namespace spdlog {
class logger;
}

namespace gdn {

class AuditLog {
 public:
  using Fields = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Makes a log that writes to the outputs that the process's log has now. If that log is off, nothing is written.
  AuditLog();

  void Write(std::string_view event, Fields fields) const;
  // Logs a refused login. At most kRefusalsASecond lines are written in a second. Further refusals are counted, and the
  // next line has the count, so that a caller who guesses tokens cannot fill the disk.
  static constexpr int kRefusalsASecond = 10;
  void WriteRefusal(std::string_view reason, std::string_view peer);

 private:
  const std::shared_ptr<spdlog::logger> logger_;
  absl::Mutex mu_;
  SteadyTime second_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  int written_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// Returns the line `audit event=NAME key="value" ..`, without an end of line. Quotes, backslashes and bytes that are
// not printable are escaped in values, so a caller who chooses a value cannot forge another line.
std::string AuditLine(std::string_view event, AuditLog::Fields fields);

}  // namespace gdn
