#include "base/net/host_port.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kExample = "127.0.0.1:50061";
constexpr size_t kLongestName = 253;  // of a host, by RFC 1035
constexpr size_t kLongestPath = 107;  // of a Unix socket, by Linux
constexpr size_t kShown = 60;         // letters of an address in an error
constexpr int kLargestPort = 65535;

std::string Quoted(std::string_view text) {
  return text.size() <= kShown ? StrCat("'", text, "'") : StrCat("'", text.substr(0, kShown), "..'");
}

absl::Status Wrong(std::string_view address, std::string_view what) {
  return absl::InvalidArgumentError(StrCat(Quoted(address), " ", what));
}

bool IsDigits(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, [](unsigned char c) { return absl::ascii_isdigit(c); });
}

absl::Status CheckHost(std::string_view address, std::string_view host) {
  if (host.size() > kLongestName) {
    return Wrong(address, StrCat("has a host of ", host.size(), " letters, expected at most ", kLongestName));
  }
  const bool odd = std::ranges::any_of(
      host, [](unsigned char c) { return absl::ascii_isspace(c) || absl::ascii_iscntrl(c) || c == '/'; });
  return odd ? Wrong(address, StrCat("has a space or a '/' in its host, expected HOST:PORT such as ", kExample))
             : absl::OkStatus();
}

absl::Status CheckPort(std::string_view address, std::string_view port, int least) {
  int number = -1;
  if (IsDigits(port) && absl::SimpleAtoi(AbslView(port), &number) && number >= least && number <= kLargestPort) {
    return absl::OkStatus();
  }
  return Wrong(address,
               StrCat("has port '", port.substr(0, kShown), "', expected a number in ", least, " .. ", kLargestPort));
}

absl::Status Check(std::string_view address, int least_port, bool may_lack_port) {
  if (address.empty()) return Wrong(address, StrCat("is empty, expected HOST:PORT such as ", kExample));
  if (IsDigits(address)) {
    return Wrong(address, address.size() <= 5
                              ? StrCat("is a port without a host, expected HOST:PORT such as 127.0.0.1:", address)
                              : StrCat("has no host, expected HOST:PORT such as ", kExample));
  }
  size_t host_end = 0;
  if (address.front() == '[') {
    const size_t bracket = address.find(']');
    if (bracket == std::string_view::npos) return Wrong(address, "has a '[' without a ']', expected [ADDRESS]:PORT");
    host_end = bracket + 1;
  } else if (std::ranges::count(address, ':') > 1) {
    const size_t last = address.rfind(':');
    return Wrong(address,
                 StrCat("is an IPv6 address without brackets, expected [", address.substr(0, std::min(last, kShown)),
                        "]:", address.substr(last + 1).substr(0, kShown)));
  } else {
    host_end = std::min(address.find(':'), address.size());
  }
  if (host_end == 0) return Wrong(address, StrCat("has no host, expected HOST:PORT such as 127.0.0.1", address));
  GDN_RETURN_IF_ERROR(CheckHost(address, address.substr(0, host_end)));
  if (host_end == address.size()) {
    return may_lack_port ? absl::OkStatus()
                         : Wrong(address, StrCat("has no port, expected ", address.substr(0, kShown), ":50061"));
  }
  if (address[host_end] != ':') return Wrong(address, "has something other than ':' after its ']'");
  return CheckPort(address, address.substr(host_end + 1), least_port);
}

// The HOST:PORT behind `scheme`, such as "dns:". Nothing if the target has another scheme or none.
std::optional<std::string_view> WithoutScheme(std::string_view target, std::string_view scheme) {
  if (!target.starts_with(scheme)) return std::nullopt;
  target.remove_prefix(scheme.size());
  if (target.starts_with("//")) {  // an authority may follow, and ends with the next slash
    const size_t slash = target.find('/', 2);
    target = slash == std::string_view::npos ? std::string_view() : target.substr(slash + 1);
  }
  return target;
}

}  // namespace

absl::Status CheckHostPort(std::string_view address) { return Check(address, 0, /*may_lack_port=*/false); }

absl::Status CheckTarget(std::string_view target) {
  if (const auto path = WithoutScheme(target, "unix:"); path.has_value()) {
    const std::string_view file = target.starts_with("unix://") ? target.substr(7) : target.substr(5);
    if (file.empty()) return Wrong(target, "has no path, expected unix:/PATH");
    if (file.size() <= kLongestPath) return absl::OkStatus();
    return Wrong(target, StrCat("has a path of ", file.size(), " bytes, expected at most ", kLongestPath));
  }
  if (const auto name = WithoutScheme(target, "dns:"); name.has_value()) {
    return Check(*name, 1, /*may_lack_port=*/true);
  }
  for (const std::string_view scheme : {"ipv4:", "ipv6:"}) {
    const auto names = WithoutScheme(target, scheme);
    if (!names.has_value()) continue;
    for (const absl::string_view name : absl::StrSplit(AbslView(*names), ',')) {
      GDN_RETURN_IF_ERROR(Check({name.data(), name.size()}, 1, /*may_lack_port=*/true));
    }
    return absl::OkStatus();
  }
  for (const std::string_view scheme : {"unix-abstract:", "vsock:", "xds:"}) {
    if (target.starts_with(scheme)) return absl::OkStatus();
  }
  if (target.find("://") != std::string_view::npos) {
    return Wrong(target, StrCat("is a URL, expected HOST:PORT such as ", kExample, ", or unix:/PATH"));
  }
  return Check(target, 1, /*may_lack_port=*/true);
}

}  // namespace gdn
