#include "state_store/tiers/disk/durable_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

// Most bytes of one read or write: a thread in the kernel lets others run only after the call. The disk is asked to
// write after each call, so that fsync finds little left to do.
constexpr size_t kChunkBytes = size_t{256} << 10;
constexpr size_t kMaxPieces = 64;  // buffers of one call; the system allows 1024

// Repeats a call that a signal interrupted.
template <typename Call>
auto Retry(Call call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

OwnedFd OpenFile(const std::string& path, int flags, mode_t mode = 0) {
  return OwnedFd(Retry([&] { return open(path.c_str(), flags | O_CLOEXEC, mode); }));
}

// Writes the pieces one after another. Returns 0, or the errno of the call that failed.
int WritePieces(int fd, const std::vector<std::string_view>& pieces) {
  const size_t call_bytes = GivesWay::here() ? kGiveWayBytes : kChunkBytes;
  size_t piece = 0;
  size_t within = 0;
  off_t offset = 0;
  off_t started = 0;  // the disk has been asked to write up to here
  while (piece < pieces.size()) {
    iovec parts[kMaxPieces];
    int count = 0;
    size_t bytes = 0;
    for (size_t i = piece, skip = within; i < pieces.size() && count < static_cast<int>(kMaxPieces); ++i, skip = 0) {
      const size_t part = std::min(pieces[i].size() - skip, call_bytes - bytes);
      parts[count++] = {.iov_base = const_cast<char*>(pieces[i].data()) + skip, .iov_len = part};
      bytes += part;
      if (bytes == call_bytes) break;
    }
    ssize_t written = Retry([&] { return pwritev(fd, parts, count, offset); });
    if (written < 0) return errno;
    if (written == 0 && bytes > 0) return EIO;
    offset += written;
    GiveWay();
    for (auto left = static_cast<size_t>(written); piece < pieces.size(); ++piece, within = 0) {
      const size_t rest = pieces[piece].size() - within;
      if (left < rest) {
        within += left;
        break;
      }
      left -= rest;
    }
    if (offset - started >= static_cast<off_t>(kChunkBytes)) {
      sync_file_range(fd, started, offset - started, SYNC_FILE_RANGE_WRITE);  // a hint; fsync reports errors
      started = offset;
    }
  }
  return 0;
}

// Drops the file from the system's cache in pieces. Otherwise the system drops all of it at once when the last holder
// closes the file.
void LetGoOfCache(int fd) {
  struct stat info;
  if (fstat(fd, &info) != 0) return;
  for (off_t at = 0; at < info.st_size; at += kChunkBytes) {
    posix_fadvise(fd, at, kChunkBytes, POSIX_FADV_DONTNEED);
    GiveWay();
  }
}

}  // namespace

absl::Status IoError(int error, std::string_view action, const std::string& path) {
  const std::string message = StrCat("cannot ", action, " '", path, "': ", std::strerror(error));
  if (error == ENOSPC || error == EDQUOT) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     StrCat(message, ". Free space there, or give the states another folder (--disk-dir)"),
                     {{"tier", "disk"}, {"path", path}});
  }
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable, message,
                   {{"tier", "disk"}, {"path", path}});
}

absl::StatusOr<OwnedFd> OpenToRead(const std::string& path) {
  OwnedFd file = OpenFile(path, O_RDONLY);
  if (file.valid()) return file;
  if (errno == ENOENT) return absl::NotFoundError(StrCat("there is no file '", path, "'"));
  return IoError(errno, "open", path);
}

absl::StatusOr<int64_t> SizeOf(const OwnedFd& file, const std::string& path) {
  struct stat info;
  if (fstat(file.get(), &info) != 0) return IoError(errno, "stat", path);
  return info.st_size;
}

ssize_t ReadAt(const OwnedFd& file, char* to, size_t size, uint64_t offset) {
  size_t done = 0;
  while (done < size) {
    const size_t wanted = std::min(size - done, kChunkBytes);
    const ssize_t got = Retry([&] { return pread(file.get(), to + done, wanted, static_cast<off_t>(offset + done)); });
    if (got < 0) return -1;
    if (got == 0) break;
    done += static_cast<size_t>(got);
  }
  return static_cast<ssize_t>(done);
}

absl::StatusOr<std::string_view> ReadFile(const std::string& path,
                                          absl::FunctionRef<absl::StatusOr<char*>(size_t)> room,
                                          SharedThreadPool* pool) {
  GDN_ASSIGN_OR_RETURN(const OwnedFd file, OpenToRead(path));
  GDN_ASSIGN_OR_RETURN(const int64_t file_bytes, SizeOf(file, path));
  const auto size = static_cast<size_t>(file_bytes);
  GDN_ASSIGN_OR_RETURN(char* const to, room(size));
  struct Part {
    size_t got = 0;
    int error = 0;
  };
  std::vector<Part> parts((size + kChunkBytes - 1) / kChunkBytes);
  ForEachIndex(pool, static_cast<int64_t>(parts.size()), [&](int64_t i) {
    const size_t begin = static_cast<size_t>(i) * kChunkBytes;
    const ssize_t got = ReadAt(file, to + begin, std::min(kChunkBytes, size - begin), begin);
    parts[static_cast<size_t>(i)] = {.got = static_cast<size_t>(std::max<ssize_t>(got, 0)),
                                     .error = got < 0 ? errno : 0};
  });
  size_t whole = 0;
  for (const Part& part : parts) {
    if (part.error != 0) return IoError(part.error, "read", path);
    whole += part.got;
    if (part.got < kChunkBytes) break;  // the last part, or the file was cut short here
  }
  return std::string_view(to, whole);
}

absl::StatusOr<std::string> ReadSmallFile(const std::string& path) {
  int64_t file_bytes = 0;
  return ReadFileStart(path, std::numeric_limits<int64_t>::max(), file_bytes);
}

absl::StatusOr<std::string> ReadFileStart(const std::string& path, int64_t bytes, int64_t& file_bytes) {
  GDN_ASSIGN_OR_RETURN(const OwnedFd file, OpenToRead(path));
  GDN_ASSIGN_OR_RETURN(file_bytes, SizeOf(file, path));
  std::string start(static_cast<size_t>(std::min(bytes, file_bytes)), '\0');
  const ssize_t got = ReadAt(file, start.data(), start.size(), /*offset=*/0);
  if (got < 0) return IoError(errno, "read", path);
  start.resize(static_cast<size_t>(got));
  return start;
}

absl::Status SyncFolder(const std::string& folder) {
  const OwnedFd file = OpenFile(folder, O_RDONLY | O_DIRECTORY);
  if (!file.valid()) return IoError(errno, "open", folder);
  if (Retry([&] { return fsync(file.get()); }) != 0) return IoError(errno, "sync", folder);
  return absl::OkStatus();
}

ReplaceResult ReplaceFile(const std::string& folder, const std::string& name,
                          const std::vector<std::string_view>& pieces) {
  const std::string path = StrCat(folder, "/", name);
  const std::string temporary = StrCat(path, ".", RandomId(), kTemporarySuffix);
  OwnedFd file = OpenFile(temporary, O_WRONLY | O_CREAT | O_EXCL, S_IRUSR | S_IWUSR);
  if (!file.valid()) return {IoError(errno, "create", temporary)};
  absl::Cleanup remove = [&temporary] { unlink(temporary.c_str()); };
  off_t bytes = 0;
  for (const std::string_view piece : pieces) bytes += static_cast<off_t>(piece.size());
  // Allocates the blocks together, and finds out early if the disk is full. If the file system cannot do this, writing
  // reports a full disk.
  if (fallocate(file.get(), 0, 0, bytes) != 0 && (errno == ENOSPC || errno == EDQUOT)) {
    return {IoError(errno, StrCat("reserve ", bytes, " bytes for"), path)};
  }
  if (const int error = WritePieces(file.get(), pieces); error != 0) return {IoError(error, "write", path)};
  if (Retry([&] { return fsync(file.get()); }) != 0) return {IoError(errno, "sync", path)};
  // Network file systems report some errors only here.
  if (close(std::move(file).Release()) != 0) return {IoError(errno, "close", path)};
  const OwnedFd replaced = OpenFile(path, O_RDONLY);
  if (rename(temporary.c_str(), path.c_str()) != 0) return {IoError(errno, "rename a file to", path)};
  std::move(remove).Cancel();
  if (replaced.valid()) LetGoOfCache(replaced.get());
  return {.status = SyncFolder(folder), .replaced = true};
}

absl::StatusOr<std::vector<std::filesystem::directory_entry>> ListFolder(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::directory_entry> entries;
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory) {
    return IoError(error.value(), "list", folder);
  }
  return entries;
}

absl::Status MakeFolder(const std::string& folder) {
  if (mkdir(folder.c_str(), S_IRWXU) == 0 || errno == EEXIST) return absl::OkStatus();
  return IoError(errno, "make the folder", folder);
}

absl::Status RemoveFile(const std::string& path) {
  if (unlink(path.c_str()) == 0 || errno == ENOENT) return absl::OkStatus();
  return IoError(errno, "remove", path);
}

}  // namespace gdn
