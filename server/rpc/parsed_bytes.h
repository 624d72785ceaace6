// What a message takes in memory once it is parsed, told from its wire form before anything is parsed: two bytes of an
// empty entry become an object of a hundred.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ChargeCall(context, caller, ParsedBytes(*type, bytes)));
#pragma once

#include <cstdint>

#include <grpcpp/support/byte_buffer.h>

#include "google/protobuf/descriptor.h"

namespace gdn {

// Of the wire bytes themselves and of what they are parsed to; of a message that is malformed, until there. Its own
// work grows with the bytes.
int64_t ParsedBytes(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& wire);

}  // namespace gdn
