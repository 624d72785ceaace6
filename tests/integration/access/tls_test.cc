// TLS of the service: whom it lets in, certificates that change while clients go on, and to whom it describes its API.
#include <grpcpp/generic/generic_stub.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include "client/cpp/client.h"
#include "client/cpp/client_tls.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/certificates.h"
#include "tests/support/temp_folder.h"

namespace gdn::tls_test {
namespace {

// Files of a CA, a server and a client, and a server that uses them.
class Tls : public ::testing::Test {
 protected:
  Tls() {
    IssueServer(ca_);
    WriteFile(path("ca.crt"), ca_.pem());
    ca_.Issue({.common_name = "alice"}).WriteTo(path("alice"));
  }
  std::string path(const std::string& name) const { return folder_.path() + "/" + name; }
  void IssueServer(const TestCa& ca) const {
    ca.Issue({.common_name = "server", .addresses = {"127.0.0.1"}}).WriteTo(path("server"));
  }
  SecurityOptions WithTls() const { return {.tls_cert = path("server.crt"), .tls_key = path("server.key")}; }
  SecurityOptions WithMtls(bool required = true) const {
    SecurityOptions options = WithTls();
    options.tls_client_ca = path("ca.crt");
    options.tls_client_optional = !required;
    return options;
  }
  // Over a connection of its own.
  absl::Status Call(const TestServer& server, const ClientTls& tls) const {
    const auto credentials = TlsCredentialsOf(tls);
    if (!credentials.ok()) return credentials.status();
    return Client::Connect(server.address(), *credentials)->GetServerInfo().status();
  }
  ClientTls Trusting(const std::string& ca) const { return {.ca = path(ca)}; }
  ClientTls As(const std::string& name) const {
    return {.ca = path("ca.crt"), .certificate = path(name + ".crt"), .key = path(name + ".key")};
  }

  const TempFolder folder_;
  const TestCa ca_{"tests"}, other_ca_{"others"};
};

TEST_F(Tls, LetsInWhoTrustsItsCaAndNobodyWithoutTls) {
  TestServer server({.security = WithTls()});
  EXPECT_EQ(Call(server, Trusting("ca.crt")), absl::OkStatus());
  WriteFile(path("others.crt"), other_ca_.pem());
  EXPECT_TRUE(absl::IsUnavailable(Call(server, Trusting("others.crt")))) << "the client knows another CA";
  EXPECT_TRUE(absl::IsUnavailable(Client::Connect(server.address())->GetServerInfo().status())) << "plain text";
}

TEST_F(Tls, AClientsCertificateHasToBeOfItsCaAndValid) {
  TestServer server({.security = WithMtls()});
  EXPECT_EQ(Call(server, As("alice")), absl::OkStatus());
  EXPECT_TRUE(absl::IsUnavailable(Call(server, Trusting("ca.crt")))) << "without one";
  other_ca_.Issue({.common_name = "alice"}).WriteTo(path("foreign"));
  EXPECT_TRUE(absl::IsUnavailable(Call(server, As("foreign")))) << "of another CA";
  ca_.Issue({.common_name = "alice", .valid_to_seconds = -60}).WriteTo(path("expired"));
  EXPECT_TRUE(absl::IsUnavailable(Call(server, As("expired"))));
}

TEST_F(Tls, AClientsCertificateMayBeLeftOutWhereItIsOptional) {
  TestServer server({.security = WithMtls(/*required=*/false)});
  EXPECT_EQ(Call(server, As("alice")), absl::OkStatus());
  EXPECT_EQ(Call(server, Trusting("ca.crt")), absl::OkStatus());
  other_ca_.Issue({.common_name = "alice"}).WriteTo(path("foreign"));
  EXPECT_TRUE(absl::IsUnavailable(Call(server, As("foreign")))) << "one that is sent has to be good";
}

TEST_F(Tls, AUnixSocketBesideItIsPlain) {
  const std::string socket = "unix:" + path("gdn.sock");
  TestServer server({.listen = {"127.0.0.1:0", socket}, .security = WithMtls()});
  EXPECT_EQ(Client::Connect(socket)->GetServerInfo().status(), absl::OkStatus());
}

TEST_F(Tls, CertificatesAreReplacedWhileClientsGoOn) {
  TestServer server({.security = WithMtls()});
  const auto staying = Client::Connect(server.address(), *TlsCredentialsOf(As("alice")));
  ASSERT_EQ(staying->GetServerInfo().status(), absl::OkStatus());

  // The certificate without its key, as while files are being replaced: nobody notices.
  const TestCertificate next = other_ca_.Issue({.common_name = "server", .addresses = {"127.0.0.1"}});
  WriteFile(path("server.crt"), next.certificate);
  server.server().security().Reload();
  EXPECT_EQ(Call(server, As("alice")), absl::OkStatus());

  // Then all of it, by another CA, which takes a second or two.
  next.WriteTo(path("server"));
  WriteFile(path("old-ca.crt"), ca_.pem());
  WriteFile(path("ca.crt"), other_ca_.pem());
  other_ca_.Issue({.common_name = "alice"}).WriteTo(path("new-alice"));
  server.server().security().Reload();
  ASSERT_TRUE(WaitUntil([&] { return Call(server, As("new-alice")).ok(); }, "the new certificates to be used"));
  ClientTls old = As("alice");
  old.ca = path("old-ca.crt");
  EXPECT_TRUE(absl::IsUnavailable(Call(server, old))) << "the old ones are not";
  EXPECT_EQ(staying->GetServerInfo().status(), absl::OkStatus()) << "its connection goes on";

  // A file that is no certificate changes nothing.
  WriteFile(path("server.crt"), "nothing");
  server.server().security().Reload();
  EXPECT_EQ(Call(server, As("new-alice")), absl::OkStatus());
}

TEST_F(Tls, TheApiIsDescribedOnlyWhereReflectionIsOn) {
  const auto answer = [](bool reflection) {
    TestServer server({.security = {.reflection = reflection}});
    grpc::GenericStub stub(server.channel());
    grpc::CompletionQueue queue;
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
    const auto call =
        stub.PrepareCall(&context, "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", &queue);
    void* tag = nullptr;
    bool ok = false;
    call->StartCall(nullptr);
    queue.Next(&tag, &ok);
    call->WritesDone(nullptr);
    queue.Next(&tag, &ok);
    grpc::Status status;
    call->Finish(&status, nullptr);
    queue.Next(&tag, &ok);
    return status.error_code();
  };
  EXPECT_EQ(answer(true), grpc::StatusCode::OK);
  EXPECT_EQ(answer(false), grpc::StatusCode::UNIMPLEMENTED);
}

}  // namespace
}  // namespace gdn::tls_test
