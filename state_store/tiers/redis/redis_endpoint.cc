#include "state_store/tiers/redis/redis_endpoint.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/files/user_file.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Makes an error without the endpoint's text, because that may contain a password.
absl::Status BadEndpoint(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the Redis endpoint ", what,
                          "; expected HOST:PORT, unix:/PATH, redis://[USER@]HOST[:PORT][/DB] or "
                          "sentinel://[USER@]HOST[:PORT][,HOST[:PORT]..]/NAME[/DB]"));
}

absl::StatusOr<std::string> PercentDecode(std::string_view text) {
  std::string decoded;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      decoded += text[i];
      continue;
    }
    const std::string_view digits = text.substr(i + 1, 2);
    if (digits.size() != 2 || !absl::ascii_isxdigit(static_cast<unsigned char>(digits[0])) ||
        !absl::ascii_isxdigit(static_cast<unsigned char>(digits[1]))) {
      return BadEndpoint("has a '%' in its user that two hexadecimal digits do not follow");
    }
    decoded += absl::HexStringToBytes(AbslView(digits));
    i += 2;
  }
  return decoded;
}

constexpr int kSentinelPort = 26379;

// Parses HOST[:PORT] for a RedisEndpoint or a RedisAddress.
template <typename Address>
absl::Status ParseHostAndPort(std::string_view text, Address& endpoint) {
  if (text.starts_with("[")) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return BadEndpoint("has a '[' without a ']'");
    endpoint.host = text.substr(1, end - 1);
    text.remove_prefix(end + 1);
    if (!text.empty() && text[0] != ':') return BadEndpoint("has something other than ':' after its ']'");
  } else {
    endpoint.host = text.substr(0, text.find(':'));
    text.remove_prefix(endpoint.host.size());
  }
  if (endpoint.host.empty()) return BadEndpoint("has no host");
  if (text.empty()) return absl::OkStatus();
  const absl::string_view port = AbslView(text.substr(1));
  if (!absl::SimpleAtoi(port, &endpoint.port) || endpoint.port < 1 || endpoint.port > 65535) {
    return BadEndpoint("has a port that is not a number in 1 .. 65535");
  }
  return absl::OkStatus();
}

absl::Status ParseSentinels(std::string_view text, RedisEndpoint& endpoint) {
  while (true) {
    const size_t comma = text.find(',');
    RedisAddress& sentinel = endpoint.sentinels.emplace_back(RedisAddress{.host = {}, .port = kSentinelPort});
    GDN_RETURN_IF_ERROR(ParseHostAndPort(text.substr(0, comma), sentinel));
    if (comma == std::string_view::npos) return absl::OkStatus();
    text.remove_prefix(comma + 1);
  }
}

// Removes "/DB" from the end of `text`, if it is there.
absl::Status TakeDatabase(std::string_view& text, RedisEndpoint& endpoint) {
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return absl::OkStatus();
  const std::string_view db = text.substr(slash + 1);
  if (!db.empty() && (!absl::SimpleAtoi(AbslView(db), &endpoint.db) || endpoint.db < 0)) {
    return BadEndpoint("has a database that is not a number");
  }
  text = text.substr(0, slash);
  return absl::OkStatus();
}

}  // namespace

std::string RedisEndpoint::ToString() const {
  if (!sentinels.empty()) return StrCat("sentinel:", master_name);
  if (!unix_path.empty()) return StrCat("unix:", unix_path);
  if (host.find(':') != std::string::npos) return StrCat("[", host, "]:", port);
  return StrCat(host, ":", port);
}

absl::StatusOr<RedisEndpoint> ParseRedisEndpoint(std::string_view text) {
  RedisEndpoint endpoint;
  if (text.starts_with("unix:")) {
    endpoint.unix_path = text.substr(5);
    if (!endpoint.unix_path.starts_with("/")) return BadEndpoint("has a socket path that does not begin with '/'");
    return endpoint;
  }
  constexpr std::string_view kScheme = "redis://";
  constexpr std::string_view kSentinelScheme = "sentinel://";
  const bool sentinel = text.starts_with(kSentinelScheme);
  if (!sentinel && !text.starts_with(kScheme)) {
    if (text.starts_with("rediss://")) {
      return BadEndpoint(
          "is rediss://, and this server speaks no TLS to Redis: run stunnel beside it and name "
          "stunnel's address here (docs/reference/flags.md, Redis over TLS)");
    }
    if (text.find("://") != std::string_view::npos) {
      return BadEndpoint("has a scheme that is neither redis:// nor sentinel://");
    }
    if (text.find_first_of("@/") != std::string_view::npos) {
      return BadEndpoint("has a user or database, but does not begin with redis://");
    }
    GDN_RETURN_IF_ERROR(ParseHostAndPort(text, endpoint));
    return endpoint;
  }
  text.remove_prefix(sentinel ? kSentinelScheme.size() : kScheme.size());
  if (const size_t at = text.rfind('@'); at != std::string_view::npos) {
    const std::string_view user = text.substr(0, at);
    if (user.find(':') != std::string_view::npos) {
      return BadEndpoint(
          "has a password, which everybody on the machine could read; put it into a file and name that by "
          "--redis-password-file");
    }
    if (user.empty()) return BadEndpoint("has nothing before its '@'");
    GDN_ASSIGN_OR_RETURN(endpoint.user, PercentDecode(user));
    text.remove_prefix(at + 1);
  }
  if (sentinel) {
    const size_t slash = text.find('/');
    std::string_view name = slash == std::string_view::npos ? std::string_view() : text.substr(slash + 1);
    GDN_RETURN_IF_ERROR(TakeDatabase(name, endpoint));
    if (name.empty()) return BadEndpoint("has Sentinels, and not the name that they know the master by");
    endpoint.master_name = name;
    GDN_RETURN_IF_ERROR(ParseSentinels(text.substr(0, slash), endpoint));
    return endpoint;
  }
  GDN_RETURN_IF_ERROR(TakeDatabase(text, endpoint));
  GDN_RETURN_IF_ERROR(ParseHostAndPort(text, endpoint));
  return endpoint;
}

absl::StatusOr<std::string> ReadRedisPassword(const RedisEndpoint& endpoint) {
  if (endpoint.password_file.empty()) return std::string();
  absl::StatusOr<std::string> text = ReadUserFile(endpoint.password_file);
  if (!text.ok()) {
    return RedisUnavailable(endpoint, StrCat("--redis-password-file: ", text.status().message()));
  }
  absl::StripTrailingAsciiWhitespace(&*text);
  if (text->empty())
    return RedisUnavailable(endpoint, StrCat("the file ", endpoint.password_file, " has no password in it"));
  return text;
}

absl::Status RedisError(const RedisEndpoint& endpoint, absl::StatusCode code, std::string_view reason,
                        std::string_view message) {
  return MakeError(code, reason, StrCat("redis at ", endpoint.ToString(), ": ", message),
                   {{"tier", "redis"}, {"endpoint", endpoint.ToString()}});
}

absl::Status RedisUnavailable(const RedisEndpoint& endpoint, std::string_view message) {
  return RedisError(endpoint, absl::StatusCode::kUnavailable, reason::kTierUnavailable, message);
}

}  // namespace gdn
