// Certificates for a test: a CA and certificates that it issues. They are made by the test, so none is out of date.
//
// Thread safety: constant. Ownership: plain values.
//
//   const TestCa ca("tests");
//   const TestCertificate server = ca.Issue({.common_name = "server", .addresses = {"127.0.0.1"}});
//   server.WriteTo(folder.path() + "/server");  // server.crt and server.key
#pragma once

#include <memory>
#include <string>
#include <vector>

namespace gdn {

struct TestCertificate {
  std::string certificate;  // PEM
  std::string key;          // PEM

  // Writes PATH.crt and PATH.key.
  void WriteTo(const std::string& path) const;
};

struct TestSubject {
  std::string common_name = {};
  std::vector<std::string> uris = {};
  std::vector<std::string> dns = {};
  std::vector<std::string> addresses = {};
  int valid_from_seconds = -3600;  // from now
  int valid_to_seconds = 3600;
};

class TestCa {
 public:
  explicit TestCa(const std::string& name);
  ~TestCa();

  const std::string& pem() const { return pem_; }
  TestCertificate Issue(const TestSubject& subject) const;

 private:
  struct Keys;
  std::unique_ptr<Keys> keys_;
  std::string pem_;
};

}  // namespace gdn
