#include "state_store/tiers/disk/file_check.h"

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"
#include "state_store/tiers/disk/durable_file.h"
#include "state_store/tiers/disk/stored_file.h"

namespace gdn {

absl::StatusOr<std::unique_ptr<FileCheck>> FileCheck::Open(const StateKey& key, const std::string& path) {
  GDN_ASSIGN_OR_RETURN(OwnedFd file, OpenToRead(path));
  return std::unique_ptr<FileCheck>(new FileCheck(key, path, std::move(file)));
}

bool FileCheck::IsThere() const {
  struct stat opened;
  struct stat named;
  return fstat(opened_.get(), &opened) == 0 && stat(path_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
         opened.st_ino == named.st_ino;
}

absl::StatusOr<std::string> FileCheck::Read(uint64_t offset, uint64_t bytes) {
  std::string piece(bytes, '\0');
  const auto drop_from_cache = [&] {
    posix_fadvise(opened_.get(), static_cast<off_t>(offset), static_cast<off_t>(bytes), POSIX_FADV_DONTNEED);
  };
  drop_from_cache();  // the cache has what was written, which may differ from what the disk has now
  const ssize_t got = ReadAt(opened_, piece.data(), bytes, offset);
  if (got < 0) return IoError(errno, "read", path_);
  drop_from_cache();
  piece.resize(static_cast<size_t>(got));
  read_bytes_ += got;
  return piece;
}

absl::Status FileCheck::ReadHeader() {
  GDN_ASSIGN_OR_RETURN(const int64_t size, SizeOf(opened_, path_));
  const auto file_bytes = static_cast<uint64_t>(size);
  uint64_t length = 0;  // length of the header's text
  GDN_ASSIGN_OR_RETURN(std::string head, Read(0, std::min<uint64_t>(sizeof(length), file_bytes)));
  if (head.size() == sizeof(length)) {
    static_assert(std::endian::native == std::endian::little);
    std::memcpy(&length, head.data(), sizeof(length));
    // An impossible header is not read; the parser reports the error.
    if (length <= std::min(file_bytes - sizeof(length), kMostSafetensorsHeaderBytes)) {
      GDN_ASSIGN_OR_RETURN(const std::string text, Read(sizeof(length), length));
      head += text;
    }
  }
  auto file = ArrivingStateFile::Open(head, size);
  if (!file.ok()) return WithPrefix(file.status(), path_);
  GDN_RETURN_IF_ERROR(WithPrefix(CheckOwner(key_, file->header()), path_));
  file_ = *std::move(file);
  return absl::OkStatus();
}

absl::StatusOr<bool> FileCheck::Advance(int64_t bytes) {
  if (!file_.has_value()) {
    GDN_RETURN_IF_ERROR(ReadHeader());
    return file_->tensors().empty();
  }
  for (auto left = static_cast<uint64_t>(std::max<int64_t>(bytes, 1)); left > 0 && tensor_ < file_->tensors().size();) {
    const SealedTensor& tensor = file_->tensors()[tensor_];
    const uint64_t wanted = std::min(left, tensor.end - tensor.begin - within_);
    GDN_ASSIGN_OR_RETURN(const std::string piece, Read(tensor.begin + within_, wanted));
    if (piece.size() < wanted) {
      return WithPrefix(MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                                  StrCat("tensor '", tensor.name, "' ends ", tensor.begin + within_ + piece.size(),
                                         " bytes into the file; expected it to end at ", tensor.end),
                                  {{"tensor", tensor.name}}),
                        path_);
    }
    for (size_t at = 0; at < piece.size(); at += kGiveWayBytes) {
      hasher_->Update(std::string_view(piece).substr(at, kGiveWayBytes));
      GiveWay();
    }
    within_ += wanted;
    left -= wanted;
    if (tensor.begin + within_ < tensor.end) continue;
    GDN_RETURN_IF_ERROR(WithPrefix(tensor.Check(hasher_->Finish()), path_));
    hasher_ = std::make_unique<Hasher>();
    within_ = 0;
    ++tensor_;
  }
  return tensor_ == file_->tensors().size();
}

}  // namespace gdn
