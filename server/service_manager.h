// Tells the manager that started the process (systemd's Type=notify) how far it is: a datagram to the socket that
// $NOTIFY_SOCKET names, as sd_notify(3) describes. Without that variable nothing is sent.
//
// Thread safety: any thread; reads the environment. Ownership: none.
//
//   TellServiceManager("READY=1");
#pragma once

#include <string_view>

namespace gdn {

// A state that cannot be sent is logged as a warning: the manager then acts on its own time limits.
void TellServiceManager(std::string_view state);

}  // namespace gdn
