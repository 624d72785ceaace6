// Ends the server's process: drains the server first, and takes a bounded time, whatever a driver does.
//
// Once states are safe, nothing else is worth waiting for. A driver that hangs would block the destruction of its
// objects forever. So the shutdown has a time limit, after which the process exits anyway.
// Thread safety: for the thread that owns the server. Ownership: takes the server.
//
//   return DrainAndEnd(std::move(server), {.steps = absl::Seconds(30), .checkpoints = absl::Minutes(5)});
#pragma once

#include <memory>

#include "server/gdn_server.h"
#include "server/options/server_options.h"

namespace gdn {

// Exit codes besides 0, 1 (the server could not start) and 2 (invalid flags).
inline constexpr int kDrainFailed = 3;
inline constexpr int kDeviceFailed = 4;

// Drains the server, destroys it, and returns the exit code. It is kDeviceFailed if limits.tell_of_device is set and
// no device worked when the drain began. Else it is kDrainFailed if an accepted call had no time to end or a session
// could not be made durable. Else it is 0. If a time limit passes before, the process exits at once with the code that
// applies then. The process must also end within limits.destruction after the drain, or it is ended with that code.
int DrainAndEnd(std::unique_ptr<GdnServer> server, const EndLimits& limits);

}  // namespace gdn
