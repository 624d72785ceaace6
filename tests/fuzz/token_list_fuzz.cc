// The file of --tokens-file.
#include "server/security/token_list.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const auto list = ParseTokenList({reinterpret_cast<const char*>(data), size}, "FILE");
  fuzz::CheckRefusal(list.status());
  if (!list.ok()) return 0;
  for (const auto& [subject, roles] : list->subjects()) {
    GDN_FUZZ_CHECK(CheckSubject(subject).ok(), subject);
    GDN_FUZZ_CHECK(!roles.admin || roles.user, subject);
  }
  for (const char* token : {"", "secret"}) {
    const TokenList::Token* const found = list->Find(token);
    GDN_FUZZ_CHECK(found == nullptr || list->RolesOf(found->subject) != nullptr, "a token of nobody");
  }
  return 0;
}
