// gdnctl token new: what it prints, and where.
#include <openssl/sha.h>

#include <regex>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/escaping.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"

namespace gdn::token_test {
namespace {

std::string Sha256(const std::string& text) {
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  return absl::BytesToHexString({reinterpret_cast<const char*>(digest), sizeof(digest)});
}

class TokenCommand : public ::testing::Test {
 protected:
  const absl::FlagSaver flags_;
};

TEST_F(TokenCommand, PrintsATokenOf256BitsAndItsDigestApart) {
  const Outcome first = RunCommand(TokenCommands(), {"token", "new"});
  ASSERT_EQ(first.exit_code, kExitOk) << first.err;
  ASSERT_TRUE(std::regex_match(first.out, std::regex("[0-9a-f]{64}\n"))) << first.out;
  const std::string token = first.out.substr(0, 64);
  EXPECT_EQ(nlohmann::json::parse(first.err), nlohmann::json({{"sha256", Sha256(token)}}));
  EXPECT_EQ(first.err.find(token), std::string::npos);
  EXPECT_NE(RunCommand(TokenCommands(), {"token", "new"}).out, first.out);
}

TEST_F(TokenCommand, MakesTheWholeEntryOfASubject) {
  const Outcome made = RunCommand(TokenCommands(), {"token", "new", "--subject=a\"b"});
  ASSERT_EQ(made.exit_code, kExitOk) << made.err;
  const auto entry = nlohmann::json::parse(made.err);
  EXPECT_EQ(entry.at("subject"), "a\"b") << "whatever it is, it is one string";
  EXPECT_EQ(entry.at("tokens").at(0).at("sha256"), Sha256(made.out.substr(0, 64)));
}

}  // namespace
}  // namespace gdn::token_test
