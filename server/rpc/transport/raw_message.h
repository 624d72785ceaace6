// Parses and serializes whole messages of methods that are served as raw bytes. For small messages.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(auto request, ParseMessage<v1::ExportStateRequest>(*bytes));
//   *bytes = SerializeMessage(response);
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include "absl/status/statusor.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

// Parses the bytes as a `Message`. INVALID_ARGUMENT (INVALID_SPEC) if they are not a valid one.
template <typename Message>
absl::StatusOr<Message> ParseMessage(const grpc::ByteBuffer& bytes) {
  grpc::ByteBuffer copy(bytes);  // shares the bytes
  grpc::ProtoBufferReader reader(&copy);
  Message message;
  if (copy.Valid() && message.ParseFromZeroCopyStream(&reader)) return message;
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                   StrCat("the message is no ", message.GetTypeName()), {{"field", "message"}});
}

template <typename Message>
grpc::ByteBuffer SerializeMessage(const Message& message) {
  const grpc::Slice slice(message.SerializeAsString());
  return {&slice, 1};
}

}  // namespace gdn
