// The end of a server's process: drained, and within a bounded time whatever a driver does.
//
// Once states are safe nothing is left that is worth waiting for, and a driver that hangs is waited for for ever by
// whoever destroys what it made. So the end has a time limit, after which the process ends without it.
// Thread safety: for the thread that owns the server. Ownership: takes the server.
//
//   return DrainAndEnd(std::move(server), {.steps = absl::Seconds(30), .checkpoints = absl::Minutes(5)});
#pragma once

#include <memory>

#include "server/gdn_server.h"
#include "server/options/server_options.h"

namespace gdn {

// Exit codes, beside 0, 1 (the server could not start) and 2 (flags).
inline constexpr int kDrainFailed = 3;
inline constexpr int kDeviceFailed = 4;

// Drains the server and destroys it. What the process is to exit with: 0, or kDrainFailed where a call that was
// accepted had no time to end or a session could not be made durable; kDeviceFailed where that is to be told. Where
// one of the limits passes without an end, the process exits with that code at once, without what is left of its own
// ending.
int DrainAndEnd(std::unique_ptr<GdnServer> server, const EndLimits& limits);

}  // namespace gdn
