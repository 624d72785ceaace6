// gdnctl token new: a token, and what the server's file of tokens has of it.
#include <openssl/evp.h>
#include <sys/random.h>

#include <array>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"
#include "tools/gdnctl/commands.h"

ABSL_FLAG(
    std::string, subject, "",
    "Whose: of a new token, whose entry is then printed whole; of sessions, another's than the caller's (for admins).");

namespace gdn {
namespace {

constexpr size_t kTokenBytes = 32;  // 256 bits, so that its digest tells nothing

absl::StatusOr<int> RunTokenNew(const std::vector<std::string>& /*arguments*/) {
  std::array<char, kTokenBytes> random;
  if (getrandom(random.data(), random.size(), 0) != static_cast<ssize_t>(random.size())) {
    return absl::UnavailableError("the system gives no random bytes");
  }
  const std::string token = absl::BytesToHexString({random.data(), random.size()});
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  if (EVP_Digest(token.data(), token.size(), digest.data(), &size, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("OpenSSL has no SHA-256");
  }
  nlohmann::ordered_json entry{
      {"sha256", absl::BytesToHexString({reinterpret_cast<const char*>(digest.data()), size})}};
  if (const std::string subject = absl::GetFlag(FLAGS_subject); !subject.empty()) {
    entry = nlohmann::ordered_json{{"subject", subject}, {"tokens", nlohmann::ordered_json::array({entry})}};
  }
  absl::FPrintF(stderr, "%s\n",
                entry.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::ordered_json::error_handler_t::replace));
  absl::PrintF("%s\n", token);
  return kExitOk;
}

}  // namespace

std::vector<Command> TokenCommands() {
  return {{.name = "token new",
           .summary = "Make a token, and the line of it for the server's --tokens-file",
           .details =
               "The token goes to stdout, this once; it is kept nowhere. Its entry for the file of tokens, which "
               "has the token's SHA-256 alone, goes to stderr:\n"
               "  gdnctl token new --subject alice > alice.token 2> alice.json\n"
               "docs/how-to/secure.md tells what else an entry may have. No server is called.",
           .flags = {"subject"},
           .run = RunTokenNew}};
}

}  // namespace gdn
