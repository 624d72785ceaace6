// Explains to a person why a server could not be reached.
//
// Thread safety: a free function.
//
//   std::fputs(ConnectionTrouble("127.0.0.1:50061", status.message()).c_str(), stderr);
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Returns what failed and what to do about it, from the message of an UNAVAILABLE error. An unknown message of gRPC is
// returned with the question whether a server listens there; all other messages are returned unchanged.
std::string ConnectionTrouble(std::string_view target, std::string_view message);

}  // namespace gdn
