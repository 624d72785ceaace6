#include "base/random_id.h"

#include <sys/random.h>

#include <cstdio>
#include <cstdlib>

#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"

namespace gdn {

std::string RandomId() {
  char bytes[16];
  if (getentropy(bytes, sizeof(bytes)) != 0) {
    // Only a kernel without getrandom gets here. A guessable session name would be worse than no process.
    std::perror("getentropy");
    std::abort();
  }
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace gdn
