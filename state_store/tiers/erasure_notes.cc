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

}  // namespace

absl::Status ErasureNotes::Set(const StateKey& session, const std::set<std::string>& tiers) {
  GDN_RETURN_IF_ERROR(DiskFolder::ValidateKey(session));
  PrincipalFolders::Hold principal(principals_, session.principal);
  const std::string name = StrCat(kPrefix, session.id);
  if (tiers.empty()) {
    if (!principal.exists()) return absl::OkStatus();
    GDN_RETURN_IF_ERROR(RemoveFile(StrCat(principal.path(), "/", name)));
    return SyncFolder(principal.path());
  }
  const std::string& directory = principals_.directory();
  GDN_RETURN_IF_ERROR(MakeFolder(directory));
  GDN_RETURN_IF_ERROR(SyncFolder(fs::path(directory).parent_path().string()));
  GDN_RETURN_IF_ERROR(principal.Make());
  const std::string text = absl::StrJoin(tiers, "\n");
  return ReplaceFile(principal.path(), name, {text}).status;
}

absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes::All() const {
  std::map<StateKey, std::set<std::string>> notes;
  GDN_ASSIGN_OR_RETURN(const auto principals, NamesIn(principals_.directory()));
  for (const std::string& principal : principals) {
    const std::string folder = StrCat(principals_.directory(), "/", principal);
    GDN_ASSIGN_OR_RETURN(const auto names, NamesIn(folder));
    if (names.empty()) rmdir(folder.c_str());  // left by a server that was killed
    for (const std::string& name : names) {
      if (!name.starts_with(kPrefix) || name.ends_with(kTemporarySuffix)) continue;
      const StateKey session{.principal = std::string(PrincipalFolders::PrincipalOf(principal)),
                             .id = name.substr(kPrefix.size()),
                             .checkpoint = {}};
      GDN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(StrCat(folder, "/", name)));
      notes[session] = absl::StrSplit(AbslView(text), '\n', absl::SkipEmpty());
    }
  }
  return notes;
}

}  // namespace gdn
