// The memory that a parsed message takes, told from its wire form before anything is parsed: two bytes of an empty
// entry become an object of a hundred.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ChargeCall(context, caller, ParsedBytes(*type, bytes)));
#pragma once

#include <cstdint>
#include <string_view>

#include <grpcpp/support/byte_buffer.h>

#include "google/protobuf/descriptor.h"

namespace gdn {

// At least what the wire bytes and the message take; for a malformed message the most that such bytes could. Takes time
// in proportion to the bytes.
int64_t ParsedBytes(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& wire);
int64_t ParsedBytes(const google::protobuf::Descriptor& type, std::string_view wire);

}  // namespace gdn
