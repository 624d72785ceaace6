// Why a server could not be reached, in words for the person who called.
//
// Thread safety: a free function.
//
//   std::fputs(ConnectionTrouble("127.0.0.1:50061", status.message()).c_str(), stderr);
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Says what failed and what to do about it, given the message of an UNAVAILABLE error. A message of gRPC that is not
// known comes back as it is, with the question whether a server listens there; other messages come back as they are.
std::string ConnectionTrouble(std::string_view target, std::string_view message);

}  // namespace gdn
