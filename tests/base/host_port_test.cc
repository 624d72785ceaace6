#include "base/net/host_port.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::host_port_test {
namespace {

using ::testing::HasSubstr;

TEST(HostPort, TakesAddressesToListenOn) {
  for (const char* const address : {"127.0.0.1:0", "localhost:65535", "[::1]:50061", "[::]:1", "gpu-box.lan:50061"}) {
    EXPECT_TRUE(CheckHostPort(address).ok()) << CheckHostPort(address);
  }
}

TEST(HostPort, SaysWhatIsWrongWithOthers) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "'' is empty, expected HOST:PORT such as 127.0.0.1:50061"},
      {"50061", "'50061' is a port without a host, expected HOST:PORT such as 127.0.0.1:50061"},
      {"localhost", "'localhost' has no port, expected localhost:50061"},
      {":50061", "':50061' has no host, expected HOST:PORT such as 127.0.0.1:50061"},
      {"::1:51779", "'::1:51779' is an IPv6 address without brackets, expected [::1]:51779"},
      {"[::1:5", "has a '[' without a ']'"},
      {"[::1]5", "has something other than ':' after its ']'"},
      {"a:99999", "'a:99999' has port '99999', expected a number in 0 .. 65535"},
      {"a:-1", "has port '-1'"},
      {"a:+1", "has port '+1'"},
      {"a: 1", "has port ' 1'"},
      {"a:http", "has port 'http'"},
      {"a:99999999999999999999", "has port '99999999999999999999'"},
      {"a b:1", "has a space"},
      {std::string(300, 'h') + ":1", "hh..' has a host of 300 letters, expected at most 253"}};
  for (const auto& [address, words] : cases) {
    EXPECT_THAT(CheckHostPort(address).message(), HasSubstr(words)) << address;
    EXPECT_LT(CheckHostPort(address).message().size(), 250u);
  }
}

TEST(Target, TakesWhatGrpcConnectsTo) {
  for (const char* const target :
       {"127.0.0.1:50061", "gpu-box", "[::1]:1", "unix:/run/gdn.sock", "unix:///run/gdn.sock", "unix:gdn.sock",
        "unix-abstract:gdn", "dns:gpu-box:50061", "dns:///gpu-box:50061", "dns://1.1.1.1/gpu-box:50061",
        "ipv4:127.0.0.1:1,127.0.0.1:2", "ipv6:[::1]:1", "xds:///service"}) {
    EXPECT_TRUE(CheckTarget(target).ok()) << CheckTarget(target);
  }
}

TEST(Target, SaysWhatIsWrongWithOthers) {
  for (const char* const target :
       {"a:0", "a:99999", "dns:///a:99999", "dns:a:99999", "ipv4:127.0.0.1:1,127.0.0.1:65536"}) {
    EXPECT_THAT(CheckTarget(target).message(), HasSubstr("expected a number in 1 .. 65535")) << target;
  }
  EXPECT_THAT(CheckTarget("http://a:1").message(), HasSubstr("is a URL, expected HOST:PORT"));
  EXPECT_THAT(CheckTarget("unix:").message(), HasSubstr("has no path"));
  EXPECT_THAT(CheckTarget("unix:/" + std::string(200, 'p')).message(), HasSubstr("has a path of 201 bytes"));
  EXPECT_THAT(CheckTarget("").message(), HasSubstr("is empty"));
}

}  // namespace
}  // namespace gdn::host_port_test
