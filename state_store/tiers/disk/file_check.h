// Verifies the checksums of a state file on the disk piece by piece, without keeping its contents.
//
// It reads the file that was opened, even if another file gets its name later. Files are replaced and never changed, so
// all pieces are of one state. The page cache is dropped first, as far as the system allows, so that damage on the disk
// itself is found.
// Thread safety: for one thread at a time. Ownership: keeps the file open until it is destroyed.
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
#include "base/owned_fd.h"
#include "state_store/state_file/parse.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

class FileCheck {
 public:
  // Opens the file at `path`, which should be a file of `key`. NOT_FOUND; UNAVAILABLE (TIER_UNAVAILABLE: tier, path).
  static absl::StatusOr<std::unique_ptr<FileCheck>> Open(const StateKey& key, const std::string& path);
  FileCheck(const FileCheck&) = delete;
  FileCheck& operator=(const FileCheck&) = delete;

  // Reads up to `bytes` bytes more, at least 1; the first call reads the whole header instead. True if the whole file
  // is verified. DATA_LOSS (INVALID_STATE_FILE: tensor) if the file is damaged, cut or another session's.
  // FAILED_PRECONDITION (STATE_MISMATCH) if this build refuses it. UNAVAILABLE if the system cannot read it.
  absl::StatusOr<bool> Advance(int64_t bytes);
  int64_t read_bytes() const { return read_bytes_; }
  const std::string& path() const { return path_; }
  // True if path() still leads to the file that was opened.
  bool IsThere() const;

 private:
  FileCheck(StateKey key, std::string path, OwnedFd opened)
      : key_(std::move(key)), path_(std::move(path)), opened_(std::move(opened)) {}
  absl::Status ReadHeader();
  // Reads `bytes` bytes at `offset`, or fewer at the end of the file.
  absl::StatusOr<std::string> Read(uint64_t offset, uint64_t bytes);

  const StateKey key_;
  const std::string path_;
  const OwnedFd opened_;
  int64_t read_bytes_ = 0;
  std::optional<ArrivingStateFile> file_;  // nullopt until the header has been read
  size_t tensor_ = 0;                      // index in file_->tensors() of the tensor that is being read
  uint64_t within_ = 0;                    // bytes of that tensor that `hasher_` has
  std::unique_ptr<Hasher> hasher_ = std::make_unique<Hasher>();
};

}  // namespace gdn
