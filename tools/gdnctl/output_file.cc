#include "tools/gdnctl/output_file.h"

#include <unistd.h>

#include <cerrno>

#include "base/string_cat.h"

namespace gdn {

absl::StatusOr<OutputFile> OutputFile::Create(const std::string& path) {
  std::FILE* const file = std::fopen((path + ".partial").c_str(), "wb");
  if (file == nullptr) return absl::ErrnoToStatus(errno, StrCat("cannot write '", path, ".partial'"));
  return OutputFile(path, file);
}

OutputFile::~OutputFile() {
  if (file_ == nullptr) return;
  file_.reset();
  std::remove(partial().c_str());
}

absl::Status OutputFile::Append(std::string_view bytes) {
  if (std::fwrite(bytes.data(), 1, bytes.size(), file_.get()) == bytes.size()) return absl::OkStatus();
  return absl::ErrnoToStatus(errno, StrCat("cannot write '", partial(), "'"));
}

absl::Status OutputFile::Commit() {
  // On the disk before it has its name: a name of an empty file is what a crash would leave otherwise.
  const bool written = std::fflush(file_.get()) == 0 && fsync(fileno(file_.get())) == 0;
  if (std::fclose(file_.release()) == 0 && written && std::rename(partial().c_str(), path_.c_str()) == 0)
    return absl::OkStatus();
  absl::Status status = absl::ErrnoToStatus(errno, StrCat("cannot write '", path_, "'"));
  std::remove(partial().c_str());
  return status;
}

}  // namespace gdn
