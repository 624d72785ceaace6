// Captures the process's log in a string until the object is destroyed.
//
// Thread safety: construct and destroy on one thread, while nothing is logged. Ownership: restores the earlier logger.
//
//   const CapturedLog log;
//   EXPECT_THAT(log.text(), HasSubstr("event=session_created"));
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include <spdlog/logger.h>
#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

namespace gdn {

class CapturedLog {
 public:
  CapturedLog() {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_);
    spdlog::set_default_logger(std::make_shared<spdlog::logger>("captured", std::move(sink)));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // Returns the log. Call only while nothing is logged.
  std::string text() const { return text_.str(); }

 private:
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
  std::ostringstream text_;
};

}  // namespace gdn
