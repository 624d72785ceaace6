#include "server/rpc/transport/parsed_bytes.h"

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

constexpr int64_t kObjectBytes = 160;  // bytes for a message and its place in a list; the API's messages are smaller
// Bytes for a string and its place in a list, or an unknown field, without its content.
constexpr int64_t kTextBytes = 96;
constexpr int64_t kScalarBytes = 16;   // bytes for a number; vectors have up to twice the capacity that they need
constexpr int64_t kUnknownBytes = 96;  // bytes for an unknown number, with the set that contains it
// Most bytes of memory that one wire byte can become, for parts that are not inspected: unknown groups, and malformed
// messages as a whole. Two wire bytes become a group.
constexpr int64_t kMostOfAByte = 96;
constexpr int kMostNested = 100;  // protobuf parses no deeper

// Adds the memory of the fields up to the stream's limit. False if they are malformed.
bool AddFields(const Descriptor& type, CodedInputStream& in, int depth, int64_t& bytes);

bool AddLengthDelimited(const FieldDescriptor* field, CodedInputStream& in, int depth, int64_t& bytes) {
  uint32_t size = 0;
  if (!in.ReadVarint32(&size) || size > INT32_MAX) return false;
  if (field == nullptr || field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
    bytes += field != nullptr && field->is_packable() ? kScalarBytes * size : kTextBytes + size;
    return in.Skip(static_cast<int>(size));
  }
  if (depth == kMostNested) return false;
  bytes += kObjectBytes;
  const auto limit = in.PushLimit(static_cast<int>(size));
  const bool good = AddFields(*field->message_type(), in, depth + 1, bytes) && in.BytesUntilLimit() == 0;
  in.PopLimit(limit);
  return good;
}

bool AddFields(const Descriptor& type, CodedInputStream& in, int depth, int64_t& bytes) {
  while (const uint32_t tag = in.ReadTag()) {
    const FieldDescriptor* const field = type.FindFieldByNumber(WireFormatLite::GetTagFieldNumber(tag));
    const auto kind = WireFormatLite::GetTagWireType(tag);
    if (kind == WireFormatLite::WIRETYPE_LENGTH_DELIMITED) {
      if (!AddLengthDelimited(field, in, depth, bytes)) return false;
      continue;
    }
    const int begin = in.CurrentPosition();
    if (!WireFormatLite::SkipField(&in, tag)) return false;
    const bool is_group = kind == WireFormatLite::WIRETYPE_START_GROUP;
    const int64_t skipped = in.CurrentPosition() - begin;
    bytes += is_group ? kMostOfAByte * (skipped + 1) : field == nullptr ? kUnknownBytes : kScalarBytes;
  }
  return in.ConsumedEntireMessage();
}

int64_t BytesOf(const Descriptor& type, CodedInputStream& in, size_t length) {
  const auto wire = static_cast<int64_t>(length);
  int64_t bytes = kObjectBytes + wire;
  return AddFields(type, in, 0, bytes) ? bytes : kObjectBytes + kMostOfAByte * wire;
}

}  // namespace

int64_t ParsedBytes(const Descriptor& type, const grpc::ByteBuffer& wire) {
  grpc::ByteBuffer copy(wire);  // shares the bytes
  if (!copy.Valid() || wire.Length() == 0) return kObjectBytes;
  grpc::ProtoBufferReader reader(&copy);
  CodedInputStream in(&reader);
  return BytesOf(type, in, wire.Length());
}

int64_t ParsedBytes(const Descriptor& type, std::string_view wire) {
  CodedInputStream in(reinterpret_cast<const uint8_t*>(wire.data()), static_cast<int>(wire.size()));
  return BytesOf(type, in, wire.size());
}

}  // namespace gdn
