#include "server/security/listen_rules.h"

#include <gtest/gtest.h>

#include "server/security/security.h"
#include "tests/support/refusal.h"

namespace gdn::listen_rules_test {
namespace {

TEST(ListenRules, LoopbackAndUnixSocketsStayOnTheMachine) {
  for (const std::string address :
       {"127.0.0.1:50061", "127.8.9.1:0", "localhost:1", "[::1]:50061", "unix:/run/gdn.sock"}) {
    EXPECT_TRUE(StaysOnThisMachine(address)) << address;
  }
  for (const std::string address : {"0.0.0.0:50061", "[::]:50061", "192.168.1.2:50061", "gdn.example:1", "128.0.0.1:1",
                                    "127.0.0.1.example:1", "[::ffff:10.0.0.1]:1", ":50061", "*:50061"}) {
    EXPECT_FALSE(StaysOnThisMachine(address)) << address;
  }
}

TEST(ListenRules, OtherAddressesNeedTlsOrAFlag) {
  const std::vector<std::string> everywhere = {"127.0.0.1:1", "0.0.0.0:50061"};
  EXPECT_THAT(CheckSecurityOptions({}, everywhere),
              IsInvalid("--listen is '0.0.0.0:50061', which other machines reach"));
  EXPECT_THAT(CheckSecurityOptions({}, everywhere), IsInvalid("--allow-insecure"));
  EXPECT_TRUE(CheckSecurityOptions({.allow_insecure = true}, everywhere).ok());
  EXPECT_TRUE(CheckSecurityOptions({.tls_cert = "c", .tls_key = "k"}, everywhere).ok());
  EXPECT_TRUE(CheckSecurityOptions({}, {"127.0.0.1:1", "unix:/a"}).ok());
}

TEST(ListenRules, OptionsThatDoNotGoTogetherAreRefused) {
  EXPECT_THAT(CheckSecurityOptions({.tls_cert = "c"}, {}), IsInvalid("--tls-key is not given"));
  EXPECT_THAT(CheckSecurityOptions({.tls_key = "k"}, {}), IsInvalid("--tls-cert is not given"));
  EXPECT_THAT(CheckSecurityOptions({.tls_client_ca = "ca"}, {}), IsInvalid("--tls-cert is not given"));
}

}  // namespace
}  // namespace gdn::listen_rules_test
