#include "state_store/tiers/erasure_notes.h"

#include <unistd.h>

#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk_folder.h"
#include "state_store/tiers/durable_file.h"

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "s-";
constexpr std::string_view kAnonymous = "anonymous";

absl::StatusOr<std::vector<std::string>> NamesIn(const std::string& folder) {
  std::error_code error;
  std::vector<std::string> names;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    return IoError(error.value(), "list", folder);
  }
  return names;
}

absl::Status MakeDurableFolder(const std::string& parent, const std::string& folder) {
  GDN_RETURN_IF_ERROR(MakeFolder(folder));
  return SyncFolder(parent);
}

}  // namespace

absl::Status ErasureNotes::Set(const StateKey& session, const std::set<std::string>& tiers) const {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(session));
  const std::string folder =
      StrCat(directory_, "/", session.principal.empty() ? std::string(kAnonymous) : session.principal);
  const std::string name = StrCat(kPrefix, session.id);
  if (tiers.empty()) {
    if (access(folder.c_str(), F_OK) != 0) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(RemoveFile(StrCat(folder, "/", name)));
    return SyncFolder(folder);
  }
  GDN_RETURN_IF_ERROR(MakeDurableFolder(fs::path(directory_).parent_path().string(), directory_));
  GDN_RETURN_IF_ERROR(MakeDurableFolder(directory_, folder));
  const std::string text = absl::StrJoin(tiers, "\n");
  return ReplaceFile(folder, name, {text}).status;
}

absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes::All() const {
  std::map<StateKey, std::set<std::string>> notes;
  GDN_ASSIGN_OR_RETURN(const auto principals, NamesIn(directory_));
  for (const std::string& principal : principals) {
    const std::string folder = StrCat(directory_, "/", principal);
    GDN_ASSIGN_OR_RETURN(const auto names, NamesIn(folder));
    for (const std::string& name : names) {
      if (!name.starts_with(kPrefix) || name.ends_with(kTemporarySuffix)) continue;
      const StateKey session{.principal = principal == kAnonymous ? std::string() : principal,
                             .id = name.substr(kPrefix.size()),
                             .checkpoint = {}};
      GDN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(StrCat(folder, "/", name)));
      notes[session] = absl::StrSplit(AbslView(text), '\n', absl::SkipEmpty());
    }
  }
  return notes;
}

}  // namespace gdn
