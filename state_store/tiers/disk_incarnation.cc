// DiskTier::NextIncarnation.
#include <string>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk_tier.h"

namespace gdn {
namespace {

constexpr char kIncarnationFile[] = "incarnation";

}  // namespace

absl::StatusOr<int64_t> DiskTier::NextIncarnation() {
  const std::string path = StrCat(options_.directory, "/", kIncarnationFile);
  int64_t incarnation = 0;
  const absl::StatusOr<std::string> file = ReadSmallFile(path);
  if (file.ok()) {
    if (!absl::SimpleAtoi(AbslView(*file), &incarnation) || incarnation < 0) {
      return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                       StrCat("'", path, "' holds no number of starts; write one there that is higher than any before"),
                       {{"tier", "disk"}, {"path", path}});
    }
  } else if (!absl::IsNotFound(file.status())) {
    return file.status();
  }
  const std::string text = StrCat(++incarnation, "\n");
  GDN_RETURN_IF_ERROR(ReplaceFile(options_.directory, kIncarnationFile, {text}).status);
  return incarnation;
}

}  // namespace gdn
