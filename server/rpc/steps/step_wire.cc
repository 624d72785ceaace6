#include "server/rpc/steps/step_wire.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/message.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "server/rpc/transport/parsed_bytes.h"

namespace gdn {
namespace {

using google::protobuf::Message;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;
using google::protobuf::io::CodedOutputStream;
using google::protobuf::io::StringOutputStream;

constexpr size_t kAlignment = 64;  // bytes: a cache line, for each tensor's data
constexpr int kMostVarintBytes = 10;
// A reply with no more data than this is copied into one piece, because lending and sending several pieces takes
// longer.
constexpr size_t kSmallData = size_t{16} << 10;

constexpr int kData = v1::Tensor::kDataFieldNumber;
constexpr int kOutput = v1::DecodeResponse::kOutputFieldNumber;
constexpr int kStepField = v1::StreamDecodeRequest::kStepFieldNumber;
constexpr int kResult = v1::StreamDecodeResponse::kResultFieldNumber;
static_assert(v1::PrefillRequest::kHiddenStatesFieldNumber == 3 && v1::DecodeRequest::kHiddenStatesFieldNumber == 3 &&
              v1::StepRequest::kHiddenStatesFieldNumber == 3);
static_assert(v1::PrefillRequest::kProjectedFieldNumber == 4 && v1::DecodeRequest::kProjectedFieldNumber == 4 &&
              v1::StepRequest::kProjectedFieldNumber == 4);
static_assert(v1::PrefillRequest::kDeltaRuleFieldNumber == 5 && v1::DecodeRequest::kDeltaRuleFieldNumber == 5 &&
              v1::StepRequest::kDeltaRuleFieldNumber == 5);
// Tensors are the first fields of each input, in the order in which inputs are checked.
static_assert(v1::DeltaRuleInput::kBetaFieldNumber == kMaxStepFields);
static_assert(v1::PrefillResponse::kOutputFieldNumber == kOutput && v1::StepResponse::kOutputFieldNumber == kOutput);
static_assert(v1::StreamPrefillRequest::kSegmentFieldNumber == kStepField &&
              v1::StreamStepRequest::kStepFieldNumber == kStepField);
static_assert(v1::StreamPrefillResponse::kResultFieldNumber == kResult &&
              v1::StreamStepResponse::kResultFieldNumber == kResult);

// Nesting levels of a message on the way to the tensors' data.
enum class Level { kStream, kStep, kInput, kTensor };

bool Opens(Level level, int field) {
  switch (level) {
    case Level::kStream:
      return field == kStepField;
    case Level::kStep:
      return field >= v1::DecodeRequest::kHiddenStatesFieldNumber && field <= v1::DecodeRequest::kDeltaRuleFieldNumber;
    case Level::kInput:
      return field >= 1 && field <= kMaxStepFields;
    case Level::kTensor:
      return field == kData;
  }
  return false;
}

void AppendVarint(uint64_t value, std::string& to) {
  uint8_t bytes[kMostVarintBytes];
  const uint8_t* const end = CodedOutputStream::WriteVarint64ToArray(value, bytes);
  to.append(reinterpret_cast<const char*>(bytes), static_cast<size_t>(end - bytes));
}

// Splits a message into its tensors' data and a message without them.
class Splitter {
 public:
  // `to` has room for the data and kAlignment more bytes for each tensor; null: the data are skipped.
  Splitter(CodedInputStream& in, char* to, TensorBytes& data) : in_(in), to_(to), data_(data) {}

  // Splits up to the stream's present limit. False if the message is unusual; then the results must not be used.
  bool Split(Level level, std::string& rest) {
    uint32_t seen = 0;
    for (;;) {
      uint64_t tag = 0;
      if (in_.BytesUntilLimit() == 0) return true;
      if (!ReadVarint(tag) || tag > std::numeric_limits<uint32_t>::max()) return false;
      const int field = WireFormatLite::GetTagFieldNumber(static_cast<uint32_t>(tag));
      const auto type = WireFormatLite::GetTagWireType(static_cast<uint32_t>(tag));
      if (type != WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
        if (!CopyNumber(tag, type, rest)) return false;
        continue;
      }
      uint64_t size = 0;
      // A limit beyond the present one would be cut to it silently, so check first.
      if (!ReadVarint(size) || size > static_cast<uint64_t>(in_.BytesUntilLimit())) return false;
      if (!Opens(level, field)) {
        if (!CopyBytes(tag, size, rest)) return false;
        continue;
      }
      // A field that occurs twice is merged or replaces the first one. Leave that to protobuf.
      const uint32_t bit = level == Level::kStep ? 1u : 1u << field;
      if ((seen & bit) != 0) return false;
      seen |= bit;
      if (level == Level::kTensor) {
        if (!TakeData(static_cast<int>(size))) return false;
      } else if (!SplitField(level, field, tag, static_cast<int>(size), rest)) {
        return false;
      }
    }
  }

 private:
  // Also false for a varint that is longer than necessary. Leave that to protobuf.
  bool ReadVarint(uint64_t& value) {
    const int begin = in_.CurrentPosition();
    return in_.ReadVarint64(&value) &&
           static_cast<size_t>(in_.CurrentPosition() - begin) == CodedOutputStream::VarintSize64(value);
  }

  bool CopyNumber(uint64_t tag, WireFormatLite::WireType type, std::string& rest) {
    AppendVarint(tag, rest);
    uint64_t value = 0;
    switch (type) {
      case WireFormatLite::WIRETYPE_VARINT:
        if (!ReadVarint(value)) return false;
        AppendVarint(value, rest);
        return true;
      case WireFormatLite::WIRETYPE_FIXED64:
        return AppendRaw(sizeof(uint64_t), rest);
      case WireFormatLite::WIRETYPE_FIXED32:
        return AppendRaw(sizeof(uint32_t), rest);
      default:
        return false;  // groups are unusual
    }
  }

  bool CopyBytes(uint64_t tag, uint64_t size, std::string& rest) {
    AppendVarint(tag, rest);
    AppendVarint(size, rest);
    return AppendRaw(size, rest);
  }

  bool AppendRaw(size_t size, std::string& rest) {
    const size_t at = rest.size();
    rest.resize(at + size);
    return in_.ReadRaw(rest.data() + at, static_cast<int>(size));
  }

  bool TakeData(int size) {
    if (to_ == nullptr) return in_.Skip(size);
    if (!in_.ReadRaw(to_, size)) return false;
    data_[tensor_] = {to_, static_cast<size_t>(size)};
    to_ += (static_cast<size_t>(size) + kAlignment - 1) / kAlignment * kAlignment;
    return true;
  }

  bool SplitField(Level level, int field, uint64_t tag, int size, std::string& rest) {
    if (level == Level::kInput) tensor_ = static_cast<size_t>(field - 1);
    std::string inner;
    const auto limit = in_.PushLimit(size);
    if (!Split(static_cast<Level>(static_cast<int>(level) + 1), inner)) return false;
    in_.PopLimit(limit);
    AppendVarint(tag, rest);
    AppendVarint(inner.size(), rest);
    rest += inner;
    return true;
  }

  CodedInputStream& in_;
  char* to_;
  TensorBytes& data_;
  size_t tensor_ = 0;  // index of the tensor being read
};

// Splits a whole message. False if it is unusual.
bool SplitWire(grpc::ByteBuffer& wire, Level level, char* to, TensorBytes& data, std::string& rest) {
  grpc::ProtoBufferReader reader(&wire);
  CodedInputStream in(&reader);
  in.PushLimit(static_cast<int>(wire.Length()));
  return Splitter(in, to, data).Split(level, rest);
}

absl::Status ReadWhole(grpc::ByteBuffer& wire, MayParse may_parse, Message& request) {
  if (wire.Length() > kPlainBytes) GDN_RETURN_IF_ERROR(may_parse(ParsedBytes(*request.GetDescriptor(), wire)));
  grpc::ProtoBufferReader reader(&wire);
  return request.ParseFromZeroCopyStream(&reader) ? absl::OkStatus() : MalformedMessage();
}

absl::StatusOr<ReceivedTensors> Read(grpc::ByteBuffer& wire, Level level, int64_t max_bytes, HostBlockPool& memory,
                                     MayParse may_parse, Message& request) {
  const absl::Cleanup give_back = [&wire] { wire.Clear(); };  // also if it is refused, because the reply may be delayed
  ReceivedTensors received;
  received.message_bytes = static_cast<int64_t>(wire.Length());
  const bool too_large = received.message_bytes > max_bytes;
  if (!too_large) {
    auto block = memory.TakeForCall(wire.Length() + kMaxStepFields * kAlignment);
    if (block.ok()) received.block = *std::move(block);
  }
  // If no block is available, for example because the device is lost, protobuf parses the data into its own memory, so
  // that errors of the request are still reported first.
  std::string rest;
  const bool apart = (too_large || received.block.valid()) &&
                     SplitWire(wire, level, too_large ? nullptr : received.block.chars(), received.data, rest);
  if (apart && rest.size() > kPlainBytes) {
    GDN_RETURN_IF_ERROR(may_parse(ParsedBytes(*request.GetDescriptor(), rest)));
  }
  if (!apart || !request.ParseFromString(rest)) {
    received.block = HostBlock();
    GDN_RETURN_IF_ERROR(ReadWhole(wire, may_parse, request));
  }
  return received;
}

// Writes the tag and the length of a message field.
void WriteHead(int field, size_t bytes, CodedOutputStream& out) {
  out.WriteTag(WireFormatLite::MakeTag(field, WireFormatLite::WIRETYPE_LENGTH_DELIMITED));
  out.WriteVarint64(bytes);
}

size_t SizeWithHead(int field, size_t bytes) {
  return CodedOutputStream::VarintSize32(static_cast<uint32_t>(field) << 3) + CodedOutputStream::VarintSize64(bytes) +
         bytes;
}

grpc::ByteBuffer Pieces(const std::string& head, ReplyOutput output, const std::string& tail) {
  if (output.bytes <= kSmallData) {
    const size_t bytes = head.size() + output.bytes + tail.size();
    grpc_slice memory = grpc_slice_malloc(bytes);
    uint8_t* to = GRPC_SLICE_START_PTR(memory);
    std::memcpy(to, head.data(), head.size());
    if (output.bytes > 0) std::memcpy(to + head.size(), output.block.chars(), output.bytes);
    std::memcpy(to + head.size() + output.bytes, tail.data(), tail.size());
    const grpc::Slice whole(memory, grpc::Slice::STEAL_REF);
    return {&whole, 1};
  }
  auto* const lent = new HostBlock(std::move(output.block));
  const grpc::Slice slices[] = {
      {head.data(), head.size()},
      {lent->chars(), output.bytes, [](void* block) { delete static_cast<HostBlock*>(block); }, lent},
      {tail.data(), tail.size()}};
  return {slices, std::size(slices)};
}

// Serializes a reply, or the stream message that contains it. The output has field number 1, so it comes first.
template <typename Reply>
grpc::ByteBuffer Write(Reply& reply, ReplyOutput output, bool in_stream) {
  const bool has_output = reply.has_output();
  v1::Tensor tensor;
  if (has_output) tensor.Swap(reply.mutable_output());
  reply.clear_output();
  const std::string tail = reply.SerializeAsString();
  const size_t tensor_bytes = tensor.ByteSizeLong() + (output.bytes > 0 ? SizeWithHead(kData, output.bytes) : 0);
  std::string head;
  {
    StringOutputStream stream(&head);
    CodedOutputStream out(&stream);
    if (in_stream) WriteHead(kResult, (has_output ? SizeWithHead(kOutput, tensor_bytes) : 0) + tail.size(), out);
    if (has_output) WriteHead(kOutput, tensor_bytes, out);
    tensor.SerializeToCodedStream(&out);
    if (output.bytes > 0) WriteHead(kData, output.bytes, out);
  }
  return Pieces(head, std::move(output), tail);
}

template <typename Reply>
grpc::ByteBuffer WriteInStream(Reply& reply, ReplyOutput output) {
  if (reply.has_result()) return Write(*reply.mutable_result(), std::move(output), /*in_stream=*/true);
  return Pieces(reply.SerializeAsString(), {}, "");
}

}  // namespace

absl::Status MalformedMessage() {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kMalformedMessage,
                   "the request's bytes are no message of its type; send what protobuf writes");
}

absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::PrefillRequest& request) {
  return Read(wire, Level::kStep, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::DecodeRequest& request) {
  return Read(wire, Level::kStep, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamPrefillRequest& request) {
  return Read(wire, Level::kStream, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamDecodeRequest& request) {
  return Read(wire, Level::kStream, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StepRequest& request) {
  return Read(wire, Level::kStep, max_bytes, memory, may_parse, request);
}
absl::StatusOr<ReceivedTensors> ReadStepRequest(grpc::ByteBuffer& wire, int64_t max_bytes, HostBlockPool& memory,
                                                MayParse may_parse, v1::StreamStepRequest& request) {
  return Read(wire, Level::kStream, max_bytes, memory, may_parse, request);
}

grpc::ByteBuffer WriteStepReply(v1::PrefillResponse& reply, ReplyOutput output) {
  return Write(reply, std::move(output), /*in_stream=*/false);
}
grpc::ByteBuffer WriteStepReply(v1::DecodeResponse& reply, ReplyOutput output) {
  return Write(reply, std::move(output), /*in_stream=*/false);
}
grpc::ByteBuffer WriteStepReply(v1::StepResponse& reply, ReplyOutput output) {
  return Write(reply, std::move(output), /*in_stream=*/false);
}
grpc::ByteBuffer WriteStepReply(v1::StreamStepResponse& reply, ReplyOutput output) {
  return WriteInStream(reply, std::move(output));
}
grpc::ByteBuffer WriteStepReply(v1::StreamPrefillResponse& reply, ReplyOutput output) {
  return WriteInStream(reply, std::move(output));
}
grpc::ByteBuffer WriteStepReply(v1::StreamDecodeResponse& reply, ReplyOutput output) {
  return WriteInStream(reply, std::move(output));
}

}  // namespace gdn
