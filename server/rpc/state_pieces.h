// State files as messages: cut into pieces on their way out, put together on their way in. Neither copies a file's
// bytes into or out of protobuf strings: a piece that leaves borrows them from the file, one that arrives is copied
// once, to its place.
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

// The messages of one file; `data` is field 1 of each, `tail` makes the rest.
class FilePieces {
 public:
  using TailFn = std::function<std::string(const PieceTail&)>;

  FilePieces() = default;
  FilePieces(EncodedStateFile file, TailFn tail);

  bool done() const { return file_ == nullptr || offset_ == file_->bytes(); }
  grpc::ByteBuffer Next();

 private:
  std::shared_ptr<const EncodedStateFile> file_;
  TailFn tail_;
  size_t part_ = 0;     // of file_->pieces(): where the next message begins
  size_t in_part_ = 0;  // bytes into it
  int64_t offset_ = 0;  // in the file
};

struct ImportMessage {
  enum class Payload { kNone, kTarget, kData };
  Payload payload = Payload::kNone;
  v1::ImportStateRequest::Target target;
  std::string_view data;
  std::optional<uint64_t> checksum;
};

// An ImportStateRequest whose data goes to where `place` says, which is asked with its size before a byte is copied;
// its errors are returned. INVALID_ARGUMENT (INVALID_SPEC) where the bytes are no such message.
absl::StatusOr<ImportMessage> ReadImportMessage(grpc::ByteBuffer& message,
                                                absl::FunctionRef<absl::StatusOr<char*>(size_t)> place);

// A file as it arrives, in one piece of memory, which grows with what has come and not with what is said to come.
class IncomingFile {
 public:
  // total_bytes 0: not known. `charge` grows with the memory.
  IncomingFile(HostBlockPool& memory, int64_t max_bytes, int64_t total_bytes, ByteCharge charge)
      : memory_(memory), max_bytes_(max_bytes), total_bytes_(total_bytes), charge_(std::move(charge)) {}

  // RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE) where total_bytes is more than the target's states can fill.
  absl::Status CheckTotal() const;

  // Room for the next `bytes`, which count once they are added. RESOURCE_EXHAUSTED (MESSAGE_TOO_LARGE), DATA_LOSS
  // (INVALID_STATE_FILE) beyond total_bytes, errors of ByteCharge::TryGrow and HostBlockPool::Take. What is there
  // already may move.
  absl::StatusOr<char*> Room(size_t bytes);
  void Add(size_t bytes) { size_ += bytes; }

  std::string_view bytes() const { return {data(), size_}; }
  int64_t total_bytes() const { return total_bytes_; }
  // What the file's header says of its size, as total_bytes. Errors as CheckTotal.
  absl::Status Expect(int64_t file_bytes);

 private:
  char* data() const { return block_.valid() ? block_.chars() : nullptr; }

  absl::Status Grow(size_t bytes);

  HostBlockPool& memory_;
  const int64_t max_bytes_;
  int64_t total_bytes_;
  ByteCharge charge_;  // of block_
  HostBlock block_;
  size_t size_ = 0;
};

}  // namespace gdn
