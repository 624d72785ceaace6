// The file of --principals.
#include "server/rpc/callers/principal_list.h"
#include "tests/fuzz/fuzz_target.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  const auto list = ParsePrincipalList({reinterpret_cast<const char*>(data), size}, "FILE");
  fuzz::CheckRefusal(list.status());
  if (!list.ok()) return 0;
  for (const auto& [digest, name] : list->names_by_digest) {
    GDN_FUZZ_CHECK(digest.size() == 64 && list->weights.contains(name), name);
  }
  for (const auto& [name, weight] : list->weights) GDN_FUZZ_CHECK(weight > 0, name);
  list->Find({"Bearer secret"});
  return 0;
}
