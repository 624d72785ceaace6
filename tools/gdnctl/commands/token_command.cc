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

ABSL_FLAG(std::string, subject, "",
          "For token new: the subject of the token. For sessions: the caller that owns them, if it is not you (for "
          "admins).");

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
           .summary = "Make a token and its entry for the server's --tokens-file",
           .details =
               "The token goes to stdout and is stored nowhere. Its entry for the file of tokens goes to stderr; the\n"
               "entry has only the token's SHA-256:\n"
               "  gdnctl token new --subject alice > alice.token 2> alice.json\n"
               "Needs no server. docs/how-to/secure.md describes the other fields of an entry.\n",
           .flags = {"subject"},
           .run = RunTokenNew}};
}

}  // namespace gdn
