// Explains to a person why a server could not be reached.
//
// Thread safety: a free function.
//
//   std::fputs(ConnectionTrouble("127.0.0.1:50061", status.message()).c_str(), stderr);
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// Turns the message of an UNAVAILABLE error into a text that says what failed and what to do about it. If a message of
// gRPC is not known here, adds the question whether a server listens there. Returns messages that are not gRPC's
// unchanged.
std::string ConnectionTrouble(std::string_view target, std::string_view message);

}  // namespace gdn
