// Tells the manager that started the process (systemd's Type=notify) how far the process is. It sends a datagram to the
// socket in $NOTIFY_SOCKET, as sd_notify(3) describes. Without that variable it sends nothing.
//
// Thread safety: any thread; reads the environment. Ownership: none.
//
//   TellServiceManager("READY=1");
#pragma once

#include <string_view>

namespace gdn {

// Sends the state, such as "READY=1", to $NOTIFY_SOCKET; does nothing if that is not set. Logs a warning if the state
// cannot be sent. The manager then acts on its own time limits.
void TellServiceManager(std::string_view state);

}  // namespace gdn
