// Lines for whoever has to know later who did what: a logger of its own, `audit`, beside the server's.
//
//   audit event=session_created subject="alice" peer="ipv4:10.0.0.7:41234" session="chat-1"
// Thread safety: safe from any thread. Ownership: none. Lines come at every log level but off.
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
#include "base/steady_clock.h"

namespace spdlog {
class logger;
}

namespace gdn {

class AuditLog {
 public:
  using Fields = std::initializer_list<std::pair<std::string_view, std::string_view>>;

  // Writes where the process's log does.
  AuditLog();

  void Write(std::string_view event, Fields fields) const;
  // A call that was not let in. Of more than kRefusalsASecond the rest are counted, and the next line has the count:
  // whoever tries tokens fills no disk.
  static constexpr int kRefusalsASecond = 10;
  void WriteRefusal(std::string_view reason, std::string_view peer);

 private:
  const std::shared_ptr<spdlog::logger> logger_;
  absl::Mutex mu_;
  SteadyTime second_ ABSL_GUARDED_BY(mu_) = SteadyTime::InfinitePast();
  int written_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t left_out_ ABSL_GUARDED_BY(mu_) = 0;
};

// `event=NAME key="value" ..`: quotes, backslashes and what is not printable are escaped, so that nobody who chooses a
// value can write a line of his own.
std::string AuditLine(std::string_view event, AuditLog::Fields fields);

}  // namespace gdn
