// gdnctl's words about a server that it cannot reach, for gRPC's own messages and for real connections.
#include "tools/gdnctl/connection_trouble.h"

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <string>

#include "absl/flags/reflection.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::connection_trouble_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ConnectionTrouble, TellsWhatToDoAboutEachKind) {
  const std::pair<std::string, std::string> cases[] = {
      {"failed to connect to all addresses; last error: Ssl handshake failed: SSL_ERROR_SSL: error:0A00010B:SSL "
       "routines::wrong version number",
       "does not speak TLS"},
      {"failed to connect to all addresses; last error: Ssl handshake failed: SSL_ERROR_SSL: error:0A000086:SSL "
       "routines::certificate verify failed",
       "--tls-ca=FILE"},
      {"failed to connect to all addresses; last error: Peer name 127.0.0.1 is not in peer certificate",
       "by a name that its certificate has"},
      {"ipv4:127.0.0.1:37597: Socket closed", "add --tls or --tls-ca=FILE"},
      {"failed to connect to all addresses; last error: Failed to connect to remote host: Connection refused",
       "nothing listens there"},
      {"failed to connect to all addresses; last error: unix:/tmp/nosock: No such file or directory", "no such socket"},
      {"DNS resolution failed for x: C-ares status is not ARES_SUCCESS", "no address is known"},
  };
  for (const auto& [message, words] : cases) {
    const std::string told = ConnectionTrouble("box:1", message);
    EXPECT_THAT(told, AllOf(HasSubstr("box:1"), HasSubstr(words), Not(HasSubstr("SSL_ERROR")), Not(HasSubstr("ARES"))));
  }
  EXPECT_EQ(ConnectionTrouble("box:1", "failed to connect to all addresses; something new"),
            "failed to connect to all addresses; something new\nIs a gdn_server listening on box:1?");
  // Not gRPC's: a file of this machine, say.
  for (const char* const other : {"cannot write '/x': No such file or directory", "program exited"}) {
    EXPECT_EQ(ConnectionTrouble("box:1", other), other);
  }
}

TEST(ConnectionTrouble, AnUnreachableServerIsNamedWithoutGrpcsWords) {
  const absl::FlagSaver saver;
  const TempFolder folder;
  const Outcome outcome = RunCommand(InfoCommands(), {"info", "--target=unix:" + folder.path() + "/none"});
  EXPECT_EQ(outcome.exit_code, kExitFailed);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("there is no such socket"), Not(HasSubstr("last error"))));
}

class TlsMismatch : public ::testing::Test {
 protected:
  TlsMismatch() : ca_("tests"), certificate_(ca_.Issue({.common_name = "server", .addresses = {"127.0.0.1"}})) {
    WriteFile(folder_.path() + "/ca.crt", ca_.pem());
    WriteFile(folder_.path() + "/other.crt", TestCa("others").pem());
  }

  Outcome Info(const std::string& target, const std::vector<std::string>& flags) {
    std::vector<std::string> arguments = {"info", "--target=" + target};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return RunCommand(InfoCommands(), arguments);
  }

  const absl::FlagSaver saver_;
  const TempFolder folder_;
  const TestCa ca_;
  const TestCertificate certificate_;
  FakeGdnService service_;
};

TEST_F(TlsMismatch, OfAClientIsToldByName) {
  const LoopbackServer plain(&service_);
  const Outcome outcome = Info(plain.target(), {"--tls-ca=" + folder_.path() + "/ca.crt"});
  EXPECT_THAT(outcome.err, HasSubstr("does not speak TLS, and this call does. Leave out --tls"));
}

TEST_F(TlsMismatch, OfAServerIsToldByName) {
  int port = 0;
  grpc::SslServerCredentialsOptions options;
  options.pem_key_cert_pairs = {{certificate_.key, certificate_.certificate}};
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::SslServerCredentials(options), &port);
  builder.RegisterService(&service_);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  const std::string target = "127.0.0.1:" + std::to_string(port);
  EXPECT_THAT(Info(target, {}).err, HasSubstr("If the server speaks TLS, add --tls"));
  EXPECT_THAT(Info(target, {"--tls-ca=" + folder_.path() + "/other.crt"}).err, HasSubstr("is not trusted"));
  EXPECT_EQ(Info(target, {"--tls-ca=" + folder_.path() + "/ca.crt"}).exit_code, kExitOk);
}

}  // namespace
}  // namespace gdn::connection_trouble_test
