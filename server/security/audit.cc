#include "server/security/audit.h"

#include <spdlog/spdlog.h>

#include "absl/strings/escaping.h"
#include "base/string_cat.h"

namespace gdn {

AuditLog::AuditLog() : logger_(spdlog::default_logger()->clone("audit")) {
  if (logger_->level() != spdlog::level::off) logger_->set_level(spdlog::level::info);
}

std::string AuditLine(std::string_view event, AuditLog::Fields fields) {
  std::string line = StrCat("audit event=", event);
  for (const auto& [key, value] : fields) StrAppend(&line, " ", key, "=\"", absl::CEscape(AbslView(value)), "\"");
  return line;
}

void AuditLog::Write(std::string_view event, Fields fields) const { logger_->info("{}", AuditLine(event, fields)); }

void AuditLog::WriteRefusal(std::string_view reason, std::string_view peer) {
  int64_t left_out = 0;
  {
    absl::MutexLock lock(&mu_);
    const SteadyTime now = SteadyNow();
    if (now - second_ >= absl::Seconds(1)) {
      second_ = now;
      written_ = 0;
    }
    if (++written_ > kRefusalsASecond) {
      ++left_out_;
      return;
    }
    left_out = std::exchange(left_out_, 0);
  }
  Write("login_refused", {{"reason", reason}, {"peer", peer}, {"left_out_before", std::to_string(left_out)}});
}

}  // namespace gdn
