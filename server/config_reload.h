// The wait of a server that runs for what ends it; a changed file of --config is taken up meanwhile.
//
// Thread safety: call once, from the main thread. Ownership: none; `options` change as the file does.
//
//   const int signal = WaitForEnd(*server, line, options, signals);
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for sets of signals

#include "server/gdn_server.h"
#include "server/options/read_options.h"

namespace gdn {

// Waits for SIGTERM or SIGINT, or without a --config for SIGHUP, and returns which it was. If there is a --config,
// SIGHUP, or a change of the file, which is looked for every two seconds, reads it anew: what is safe takes effect, and
// the log says what has changed and whether it did. `options`: what ReadOptions returned for `line`. `signals`: these
// three, blocked in every thread.
int WaitForEnd(GdnServer& server, const CommandFlags& line, ServerOptions& options, const sigset_t& signals);

}  // namespace gdn
