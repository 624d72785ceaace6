// Estimates how much memory a message will take when it is parsed, from its wire bytes. A parsed message can be far
// larger than its bytes: an empty entry has two bytes on the wire and becomes an object of about a hundred.
//
// Thread safety: free functions.
//
//   GDN_ASSIGN_OR_RETURN(ByteCharge charge, ChargeCall(ledger, caller, ParsedBytes(*type, bytes)));
#pragma once

#include <cstdint>
#include <string_view>

#include <grpcpp/support/byte_buffer.h>

#include "google/protobuf/descriptor.h"

namespace gdn {

// Returns an upper bound of the bytes of memory for the parsed message of this type and its wire bytes. For a malformed
// message, the most that so many bytes could become. Takes time in proportion to the bytes.
int64_t ParsedBytes(const google::protobuf::Descriptor& type, const grpc::ByteBuffer& wire);
int64_t ParsedBytes(const google::protobuf::Descriptor& type, std::string_view wire);

}  // namespace gdn
