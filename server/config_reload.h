// The wait of a running server for its shutdown. Changes of the --config file are applied meanwhile.
//
// Thread safety: call once, from the main thread. Ownership: none; `options` change when the file does.
//
//   const int signal = WaitForEnd(*server, line, options, signals);
#pragma once

#include <signal.h>  // NOLINT(modernize-deprecated-headers): POSIX's, for sets of signals

#include "server/gdn_server.h"
#include "server/options/read_options.h"

namespace gdn {

// Blocks until SIGTERM or SIGINT comes, or without a --config file SIGHUP, and returns the signal. With a --config
// file, reads the file again on SIGHUP and when it has changed, which is checked every two seconds. Options that may
// change while the server runs take effect; a file with a fault changes nothing. The log names the options that have
// changed, and says for each whether it took effect. `options`: the result of ReadOptions for `line`. `signals`: these
// three signals, which must be blocked in every thread.
int WaitForEnd(GdnServer& server, const CommandFlags& line, ServerOptions& options, const sigset_t& signals);

}  // namespace gdn
