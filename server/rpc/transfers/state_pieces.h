// Splits state files into messages for export, and assembles them for import. Neither copies a file's bytes through
// protobuf strings: an outgoing piece borrows them from the file, and an incoming piece is copied once, to its final
// place.
//
// Thread safety: for one thread at a time. Ownership: messages keep the EncodedStateFile that they borrow from alive;
// an IncomingFile's HostBlockPool must outlive it.
//
//   FilePieces pieces(file, [](const PieceTail& tail) { return ...the other fields, serialized...; });
//   while (!pieces.done()) Write(pieces.Next());
//   IncomingFile incoming(memory, max_bytes, /*total_bytes=*/0, charge);
//   GDN_ASSIGN_OR_RETURN(ImportMessage message, ReadImportMessage(buffer, [&](size_t n) { return incoming.Room(n); }));
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "gdn/v1/session.pb.h"
#include "server/admission/byte_ledger.h"
#include "state_store/host_block_pool.h"
#include "state_store/state_file/encode.h"

namespace gdn {

struct PieceTail {
  int64_t offset = 0;
  int64_t total_bytes = 0;
  uint64_t checksum = 0;
};

// The messages of one file, each with at most 2 MiB of it. `data` is field 1 of each message; `tail` serializes the
// other fields. Without a file it is done at once.
class FilePieces {
 public:
  using TailFn = std::function<std::string(const PieceTail&)>;

  FilePieces() = default;
  FilePieces(EncodedStateFile file, TailFn tail);

  bool done() const { return file_ == nullptr || offset_ == file_->bytes(); }
  // Returns the message with the next piece of the file, in order. Call only if not done().
  grpc::ByteBuffer Next();

 private:
  std::shared_ptr<const EncodedStateFile> file_;
  TailFn tail_;
  size_t part_ = 0;     // index in file_->pieces() at which the next message begins
  size_t in_part_ = 0;  // bytes of that part that were sent
  int64_t offset_ = 0;  // bytes of the file that were sent
};

struct ImportMessage {
  enum class Payload { kNone, kTarget, kData };
  Payload payload = Payload::kNone;
  v1::ImportStateRequest::Target target;
  std::string_view data;
  std::optional<uint64_t> checksum;
};

// Parses an ImportStateRequest and copies its data to the address that `place` returns for the data's size;
// ImportMessage::data then views that. Returns the error of `place`, or INVALID_ARGUMENT (INVALID_SPEC) if the bytes
// are not such a message.
absl::StatusOr<ImportMessage> ReadImportMessage(grpc::ByteBuffer& message,
                                                absl::FunctionRef<absl::StatusOr<char*>(size_t)> place);

// Collects an incoming file in one block of memory. The block grows with the bytes that have arrived, not with the size
// that the client announces.
class IncomingFile {
 public:
  // `max_bytes`: most that the file may have. `total_bytes`: size that the client announces; 0: not known. `charge`,
  // which may have 0 bytes, grows with the memory.
  IncomingFile(HostBlockPool& memory, int64_t max_bytes, int64_t total_bytes, ByteCharge charge)
      : memory_(memory), max_bytes_(max_bytes), total_bytes_(total_bytes), charge_(std::move(charge)) {}

  // OK if the file's size is not known, or is at most max_bytes, the most that the target's states can take. Else
  // RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE).
  absl::Status CheckTotal() const;

  // Returns space for the next `bytes` bytes; call Add once they are written. The bytes that are already here may move.
  // RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) beyond max_bytes; DATA_LOSS (INVALID_STATE_FILE) beyond total_bytes, if that
  // is known; errors of ByteCharge::TryGrow and HostBlockPool::TakeForFile.
  absl::StatusOr<char*> Room(size_t bytes);
  void Add(size_t bytes) { size_ += bytes; }

  std::string_view bytes() const { return {data(), size_}; }
  int64_t total_bytes() const { return total_bytes_; }
  // Sets total_bytes to the size that the file's header states. Errors of CheckTotal.
  absl::Status Expect(int64_t file_bytes);

 private:
  char* data() const { return block_.valid() ? block_.chars() : nullptr; }

  absl::Status Grow(size_t bytes);

  HostBlockPool& memory_;
  const int64_t max_bytes_;
  int64_t total_bytes_;
  ByteCharge charge_;  // for block_
  HostBlock block_;
  size_t size_ = 0;
};

}  // namespace gdn
