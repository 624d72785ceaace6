// Reads a state file from the disk piece by piece and verifies its checksums, keeping none of it.
//
// The file is the one that was opened, whatever its name leads to later: files are replaced and never changed, so what
// is read is one state from begin to end. It is read past the system's cache, as far as that can be: what is looked for
// is on the disk.
// Thread safety: for one thread at a time. Ownership: has the file open until it ends.
//
//   GDN_ASSIGN_OR_RETURN(auto check, FileCheck::Open(key, path));
//   for (bool whole = false; !whole;) GDN_ASSIGN_OR_RETURN(whole, check->Advance(1 << 20));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/hash.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class FileCheck {
 public:
  // NOT_FOUND; UNAVAILABLE (TIER_UNAVAILABLE: tier, path).
  static absl::StatusOr<std::unique_ptr<FileCheck>> Open(const StateKey& key, const std::string& path);
  FileCheck(const FileCheck&) = delete;
  FileCheck& operator=(const FileCheck&) = delete;
  ~FileCheck();

  // Reads about so many bytes more, a header always whole. True: all of the file has been read, and is what was
  // written. DATA_LOSS (INVALID_STATE_FILE: tensor) where it is damaged, cut or another session's; UNAVAILABLE where
  // the system cannot read it.
  absl::StatusOr<bool> Advance(int64_t bytes);
  int64_t read_bytes() const { return read_bytes_; }
  const std::string& path() const { return path_; }
  // Whether the file that was opened is still the one of its name.
  bool IsThere() const;

 private:
  FileCheck(StateKey key, std::string path, int fd) : key_(std::move(key)), path_(std::move(path)), fd_(fd) {}
  absl::Status ReadHeader();
  // Up to so many bytes; fewer where the file ends.
  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t bytes);

  const StateKey key_;
  const std::string path_;
  const int fd_;
  int64_t read_bytes_ = 0;
  std::optional<ArrivingStateFile> file_;  // nothing: the header has not been read
  size_t tensor_ = 0;                      // the next of file_->tensors()
  uint64_t within_ = 0;                    // bytes of it that `hasher_` has
  std::unique_ptr<Hasher> hasher_ = std::make_unique<Hasher>();
};

}  // namespace gdn
