// Folders of principals below one folder. A principal's folder is made for its first entry and removed with its last
// one, because callers can invent any number of principals.
//
//   DIR/PRINCIPAL    PRINCIPAL: hexadecimal digits, or "anonymous" for the empty name
// Errors: those of durable_file.h.
// Thread safety: safe from any thread. Ownership: a Hold must not outlive its PrincipalFolders.
//
//   PrincipalFolders::Hold folder(folders_, key.principal);  // the folder is not removed while `folder` lives
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

  // Convert a principal to the name of its folder, and back.
  static std::string_view NameOf(std::string_view principal) { return principal.empty() ? kAnonymous : principal; }
  static std::string_view PrincipalOf(std::string_view name) { return name == kAnonymous ? "" : name; }
  const std::string& directory() const { return directory_; }
  std::string PathOf(std::string_view principal) const;

  // Keeps the principal's folder, if it exists, from being removed while it is used.
  class Hold {
   public:
    Hold(PrincipalFolders& folders, std::string_view principal);
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;
    // Removes the folder if it is empty and there is no other Hold of it.
    ~Hold();

    const std::string& path() const { return path_; }
    bool exists() const;
    // Makes the folder unless it exists. It is durable on return. `directory()` must exist.
    absl::Status Make();

   private:
    PrincipalFolders& folders_;
    const std::string path_;
  };

 private:
  static constexpr std::string_view kAnonymous = "anonymous";
  struct Use {
    int holds = 0;
    bool durable = false;  // the folder would survive a crash of the machine
  };

  const std::string directory_;
  absl::Mutex mu_;
  std::map<std::string, Use> uses_ ABSL_GUARDED_BY(mu_);  // by path; only folders that are held
};

}  // namespace gdn
