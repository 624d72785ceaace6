#include "server/rpc/transfers/state_pieces.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "gdn/v1/state.pb.h"

namespace gdn {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;

constexpr int64_t kPieceBytes = int64_t{2} << 20;
constexpr size_t kFirstIncomingBytes = size_t{1} << 20;

static_assert(v1::ExportStateResponse::kDataFieldNumber == 1 && v1::WatchStateResponse::kDataFieldNumber == 1);
constexpr uint32_t kDataTag = WireFormatLite::MakeTag(1, WireFormatLite::WIRETYPE_LENGTH_DELIMITED);

grpc::Slice Borrow(std::string_view bytes, const std::shared_ptr<const EncodedStateFile>& owner) {
  return {const_cast<char*>(bytes.data()), bytes.size(),
          [](void* held) { delete static_cast<std::shared_ptr<const EncodedStateFile>*>(held); },
          new std::shared_ptr<const EncodedStateFile>(owner)};
}

absl::Status NoMessage() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   "the message is no ImportStateRequest; send target first, then data", {{"field", "payload"}});
}

}  // namespace

FilePieces::FilePieces(EncodedStateFile file, TailFn tail)
    : file_(std::make_shared<const EncodedStateFile>(std::move(file))), tail_(std::move(tail)) {}

grpc::ByteBuffer FilePieces::Next() {
  const int64_t begin = offset_;
  const int64_t bytes = std::min(kPieceBytes, file_->bytes() - offset_);
  char head[16];
  auto* end = reinterpret_cast<uint8_t*>(head);
  end = CodedOutputStream::WriteTagToArray(kDataTag, end);
  end = CodedOutputStream::WriteVarint64ToArray(static_cast<uint64_t>(bytes), end);
  std::vector<grpc::Slice> slices;
  slices.emplace_back(head, static_cast<size_t>(reinterpret_cast<char*>(end) - head));
  Hasher hasher;
  for (int64_t left = bytes; left > 0;) {
    const std::string_view part = file_->pieces()[part_].substr(in_part_);
    const std::string_view taken = part.substr(0, static_cast<size_t>(left));
    hasher.Update(taken);
    if (!taken.empty()) slices.push_back(Borrow(taken, file_));
    left -= static_cast<int64_t>(taken.size());
    in_part_ += taken.size();
    if (taken.size() < part.size()) break;
    ++part_;
    in_part_ = 0;
  }
  offset_ += bytes;
  slices.emplace_back(tail_({.offset = begin, .total_bytes = file_->bytes(), .checksum = hasher.Finish64()}));
  return {slices.data(), slices.size()};
}

absl::StatusOr<ImportMessage> ReadImportMessage(grpc::ByteBuffer& message,
                                                absl::FunctionRef<absl::StatusOr<char*>(size_t)> place) {
  ImportMessage result;
  grpc::ProtoBufferReader reader(&message);
  CodedInputStream in(&reader);
  while (const uint32_t tag = in.ReadTag()) {
    const int field = WireFormatLite::GetTagFieldNumber(tag);
    const bool bytes = WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED;
    if (bytes && field == v1::ImportStateRequest::kDataFieldNumber) {
      uint32_t size = 0;
      // Check the size against the message before memory is allocated for it.
      if (!in.ReadVarint32(&size) || size > message.Length()) return NoMessage();
      GDN_ASSIGN_OR_RETURN(char* const to, place(size));
      if (!in.ReadRaw(to, static_cast<int>(size))) return NoMessage();
      result.payload = ImportMessage::Payload::kData;
      result.data = {to, size};
    } else if (bytes && field == v1::ImportStateRequest::kTargetFieldNumber) {
      if (!WireFormatLite::ReadMessage(&in, &result.target)) return NoMessage();
      result.payload = ImportMessage::Payload::kTarget;
    } else if (tag == WireFormatLite::MakeTag(v1::ImportStateRequest::kChecksumFieldNumber,
                                              WireFormatLite::WIRETYPE_FIXED64)) {
      uint64_t checksum = 0;
      if (!in.ReadLittleEndian64(&checksum)) return NoMessage();
      result.checksum = checksum;
    } else if (!WireFormatLite::SkipField(&in, tag)) {
      return NoMessage();
    }
  }
  if (!in.ConsumedEntireMessage()) return NoMessage();
  return result;
}

absl::Status IncomingFile::CheckTotal() const {
  if (total_bytes_ <= max_bytes_) return absl::OkStatus();
  return MakeError(absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
                   StrCat("the state file of ", total_bytes_, " bytes is larger than the ", max_bytes_,
                          " that the target's states can fill"),
                   {{"found", StrCat(total_bytes_)}, {"expected", StrCat(max_bytes_)}});
}

absl::StatusOr<char*> IncomingFile::Room(size_t bytes) {
  const size_t wanted = size_ + bytes;
  if (static_cast<int64_t>(wanted) > max_bytes_) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
        StrCat("the state file is larger than the ", max_bytes_, " bytes that the target's states can fill"),
        {{"expected", StrCat(max_bytes_)}});
  }
  if (total_bytes_ > 0 && static_cast<int64_t>(wanted) > total_bytes_) {
    return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                     StrCat("the state file is longer than the ", total_bytes_, " bytes that target.total_bytes says"),
                     {{"tensor", "header"}});
  }
  if (!block_.valid() || wanted > block_.bytes()) {
    const size_t most = static_cast<size_t>(total_bytes_ > 0 ? total_bytes_ : max_bytes_);
    GDN_RETURN_IF_ERROR(Grow(std::min(std::max({wanted, 2 * size_, kFirstIncomingBytes}), most)));
  }
  return data() + size_;
}

absl::Status IncomingFile::Expect(int64_t file_bytes) {
  total_bytes_ = file_bytes;
  return CheckTotal();
}

absl::Status IncomingFile::Grow(size_t bytes) {
  const int64_t before = charge_.bytes();
  GDN_RETURN_IF_ERROR(charge_.TryGrow(static_cast<int64_t>(bytes)));  // old and new block exist during the copy
  GDN_ASSIGN_OR_RETURN(HostBlock block, memory_.TakeForFile(bytes));
  if (size_ > 0) std::memcpy(block.chars(), data(), size_);
  block_ = std::move(block);
  charge_.ShrinkTo(charge_.bytes() - before);
  return absl::OkStatus();
}

}  // namespace gdn
