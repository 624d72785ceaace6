// The folders of principals below one folder: each is made when something is written into it, and goes with its last
// entry. A caller may invent principals without end, so no folder of one may outlive what it holds.
//
//   DIR/PRINCIPAL    PRINCIPAL: hexadecimal digits, or "anonymous" for the empty name
// Errors: as of durable_file.h.
// Thread safety: safe from any thread. Ownership: a Hold must not outlive its PrincipalFolders.
//
//   PrincipalFolders::Hold folder(folders_, key.principal);  // nobody removes the folder until it ends
//   GDN_RETURN_IF_ERROR(folder.Make());
//   GDN_RETURN_IF_ERROR(ReplaceFile(folder.path(), "name", {text}).status);
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

namespace gdn {

class PrincipalFolders {
 public:
  explicit PrincipalFolders(std::string directory) : directory_(std::move(directory)) {}

  // The folder's name for a principal, and the principal of a folder's name.
  static std::string_view NameOf(std::string_view principal) { return principal.empty() ? kAnonymous : principal; }
  static std::string_view PrincipalOf(std::string_view name) { return name == kAnonymous ? "" : name; }
  const std::string& directory() const { return directory_; }
  std::string PathOf(std::string_view principal) const;

  class Hold {
   public:
    Hold(PrincipalFolders& folders, std::string_view principal);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Removes the folder if nobody else holds it and nothing is in it.
    ~Hold();

    const std::string& path() const { return path_; }
    bool exists() const;
    // Durable on return. `directory()` must exist.
    absl::Status Make();

   private:
    PrincipalFolders& folders_;
    const std::string path_;
  };

 private:
  static constexpr std::string_view kAnonymous = "anonymous";
  struct Use {
    int holds = 0;
    bool durable = false;  // known to outlive a crash of the machine
  };

  const std::string directory_;
  absl::Mutex mu_;
  std::map<std::string, Use> uses_ ABSL_GUARDED_BY(mu_);  // by path: of those that are held
};

}  // namespace gdn
