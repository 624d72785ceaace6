#include "server/security/certificate_files.h"

#include <gtest/gtest.h>

#include "tests/support/certificates.h"
#include "tests/support/refusal.h"
#include "tests/support/temp_folder.h"

namespace gdn::certificate_files_test {
namespace {

class CertificateFilesTest : public ::testing::Test {
 protected:
  CertificateFilesTest() {
    ca_.Issue({.common_name = "server"}).WriteTo(path_);
    WriteFile(path_ + ".ca", ca_.pem());
  }
  absl::StatusOr<std::unique_ptr<CertificateFiles>> Make() const {
    return CertificateFiles::Make({.certificate = path_ + ".crt",
                                   .key = path_ + ".key",
                                   .client_ca = path_ + ".ca",
                                   .clients = ClientCertificates::kRequired});
  }

  const TempFolder folder_;
  const std::string path_ = folder_.path() + "/server";
  const TestCa ca_{"tests"};
};

TEST_F(CertificateFilesTest, EachKindOfFaultIsNamedAtTheStart) {
  ASSERT_TRUE(Make().ok()) << Make().status();
  const TestCertificate good = ca_.Issue({.common_name = "server"});
  const TestCertificate expired = ca_.Issue({.common_name = "server", .valid_to_seconds = -60});
  const TestCertificate early = ca_.Issue({.common_name = "server", .valid_from_seconds = 1800});
  const struct {
    std::string certificate, key, client_ca, message;
  } faults[] = {
      {"", good.key, ca_.pem(), "holds no certificate"},
      {good.certificate.substr(0, 200), good.key, ca_.pem(), "holds no certificate"},
      {good.certificate + good.certificate.substr(0, 200), good.key, ca_.pem(), "damaged certificate"},
      {expired.certificate, expired.key, ca_.pem(), "has expired"},
      {early.certificate, early.key, ca_.pem(), "not valid yet"},
      {good.certificate, expired.key, ca_.pem(), "is not the key of the certificate"},
      {good.certificate, "", ca_.pem(), "holds no private key"},
      {good.certificate, good.certificate, ca_.pem(), "holds no private key"},
      {good.certificate, good.key, good.key, "--tls-client-ca"},
  };
  for (const auto& fault : faults) {
    WriteFile(path_ + ".crt", fault.certificate);
    WriteFile(path_ + ".key", fault.key);
    WriteFile(path_ + ".ca", fault.client_ca);
    EXPECT_THAT(Make().status(), IsInvalid(fault.message));
  }
  ASSERT_EQ(remove((path_ + ".key").c_str()), 0);
  EXPECT_THAT(Make().status(), IsInvalid("the file of --tls-key"));
}

TEST_F(CertificateFilesTest, WhatIsNotGoodIsNotTakenUp) {
  const auto files = *Make();
  EXPECT_FALSE(*files->Reload()) << "nothing has changed";
  const TestCertificate next = ca_.Issue({.common_name = "server"});
  WriteFile(path_ + ".crt", next.certificate);
  EXPECT_THAT(files->Reload().status(), IsInvalid("is not the key of the certificate"));
  WriteFile(path_ + ".key", next.key);
  EXPECT_TRUE(*files->Reload());
  EXPECT_FALSE(*files->Reload());
}

}  // namespace
}  // namespace gdn::certificate_files_test
