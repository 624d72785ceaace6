#include "state_store/tiers/disk/erasure_notes.h"

#include <unistd.h>

#include <filesystem>
#include <utility>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "state_store/tiers/disk/disk_folder.h"
#include "state_store/tiers/disk/durable_file.h"

namespace gdn {
namespace {

constexpr std::string_view kPrefix = "s-";

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
  GDN_RETURN_IF_ERROR(SyncFolder(std::filesystem::path(directory).parent_path().string()));
  GDN_RETURN_IF_ERROR(principal.Make());
  const std::string text = absl::StrJoin(tiers, "\n");
  return ReplaceFile(principal.path(), name, {text}).status;
}

absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes::All() const {
  std::map<StateKey, std::set<std::string>> notes;
  GDN_ASSIGN_OR_RETURN(const auto principals, ListFolder(principals_.directory()));
  for (const auto& principal : principals) {
    const std::string folder = principal.path().filename().string();
    GDN_ASSIGN_OR_RETURN(const auto files, ListFolder(principal.path().string()));
    if (files.empty()) rmdir(principal.path().c_str());  // left by a server that was killed
    for (const auto& file : files) {
      const std::string name = file.path().filename().string();
      if (!name.starts_with(kPrefix) || name.ends_with(kTemporarySuffix)) continue;
      const StateKey session{.principal = std::string(PrincipalFolders::PrincipalOf(folder)),
                             .id = name.substr(kPrefix.size()),
                             .checkpoint = {}};
      GDN_ASSIGN_OR_RETURN(const std::string text, ReadSmallFile(file.path().string()));
      notes[session] = absl::StrSplit(AbslView(text), '\n', absl::SkipEmpty());
    }
  }
  return notes;
}

}  // namespace gdn
