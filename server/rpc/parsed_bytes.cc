#include "server/rpc/parsed_bytes.h"

#include <grpcpp/support/proto_buffer_reader.h>

#include <algorithm>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/wire_format_lite.h"

namespace gdn {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedInputStream;

constexpr int64_t kObjectBytes = 160;  // of a message with its place in a list; those of the API have less
constexpr int64_t kTextBytes = 56;     // of a string with its place in a list, beside its bytes
constexpr int64_t kScalarBytes = 16;   // of a number; vectors have up to twice the room that they need
constexpr int kMostNested = 100;       // protobuf parses no deeper

int64_t LengthDelimited(const Descriptor* type, int number, CodedInputStream& in, int depth);

// Of the fields until the stream's limit.
int64_t Fields(const Descriptor* type, CodedInputStream& in, int depth) {
  int64_t bytes = 0;
  while (const uint32_t tag = in.ReadTag()) {
    if (WireFormatLite::GetTagWireType(tag) == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      bytes += LengthDelimited(type, WireFormatLite::GetTagFieldNumber(tag), in, depth);
    } else {
      bytes += kScalarBytes;
      if (!WireFormatLite::SkipField(&in, tag)) return bytes;
    }
  }
  return bytes;
}

int64_t LengthDelimited(const Descriptor* type, int number, CodedInputStream& in, int depth) {
  uint32_t size = 0;
  if (!in.ReadVarint32(&size)) return 0;
  const FieldDescriptor* const field = type == nullptr ? nullptr : type->FindFieldByNumber(number);
  if (field != nullptr && field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && depth < kMostNested) {
    const auto limit = in.PushLimit(static_cast<int>(std::min<uint32_t>(size, INT32_MAX)));
    const int64_t bytes = kObjectBytes + Fields(field->message_type(), in, depth + 1);
    in.Skip(std::max(in.BytesUntilLimit(), 0));
    in.PopLimit(limit);
    return bytes;
  }
  const bool is_packed = field != nullptr && field->is_packable();
  const int64_t bytes = is_packed ? kScalarBytes * size : kTextBytes + size;
  return in.Skip(static_cast<int>(std::min<uint32_t>(size, INT32_MAX))) ? bytes : 0;
}

}  // namespace

int64_t ParsedBytes(const Descriptor& type, const grpc::ByteBuffer& wire) {
  grpc::ByteBuffer copy(wire);  // shares them
  grpc::ProtoBufferReader reader(&copy);
  const auto length = static_cast<int64_t>(wire.Length());
  if (!copy.Valid() || length == 0) return kObjectBytes;
  CodedInputStream in(&reader);
  return kObjectBytes + length + Fields(&type, in, 0);
}

}  // namespace gdn
