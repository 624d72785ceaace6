#include "server/observability/logging.h"

#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

#include "absl/strings/str_format.h"

namespace gdn {
namespace {

// Formats the message as the inside of a JSON string. Bytes above 0x7f are assumed to be UTF-8 and kept.
class JsonMessageFlag final : public spdlog::custom_flag_formatter {
 public:
  void format(const spdlog::details::log_msg& message, const std::tm& /*time*/, spdlog::memory_buf_t& out) override {
    for (const char c : message.payload) {
      if (c == '"' || c == '\\') out.push_back('\\');
      if (static_cast<unsigned char>(c) >= 0x20) {
        out.push_back(c);
        continue;
      }
      const std::string escaped = absl::StrFormat("\\u%04x", static_cast<unsigned char>(c));
      out.append(escaped.data(), escaped.data() + escaped.size());
    }
  }
  std::unique_ptr<custom_flag_formatter> clone() const override { return std::make_unique<JsonMessageFlag>(); }
};

}  // namespace

void InitLogging(const LoggingOptions& options) {
  auto logger = std::make_shared<spdlog::logger>("gdn", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  if (options.format == "json") {
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMessageFlag>('*').set_pattern(
        R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","thread":%t,"message":"%*"})");
    logger->set_formatter(std::move(formatter));
  } else {
    logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%L%$ %v");
  }
  logger->set_level(spdlog::level::from_str(options.level));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
}

}  // namespace gdn
