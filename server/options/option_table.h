// The server's flags as one table. The command line, the file of --config, the checks of single values, the reload of
// the file and docs/reference/flags.md follow from it.
//
// Thread safety: constant; safe from any thread. Ownership: plain values.
//
//   ServerOptions options;
//   const std::string expected = Options().at("max-draft").read("5", options);  // "": it was read
//   std::cout << Options().at("max-draft").print(options);
#pragma once

#include <map>
#include <string>
#include <vector>

#include "server/config/value_form.h"
#include "server/options/server_options.h"

namespace gdn {

enum class OptionUse {
  kAtStart,    // a change needs a restart
  kLive,       // a change of the file takes effect while the server runs (server/config_reload.cc)
  kRepeats,    // a list; each use of the flag on the command line gives one element
  kNotInFile,  // only on the command line
};

// A flag. Its form's `read` sets one member of the options that it is given, and `print` writes that member as text.
struct Option : ValueForm<ServerOptions> {
  std::string help = {};
  OptionUse use = OptionUse::kAtStart;
};

// All flags by name, with "-".
using OptionTable = std::map<std::string, Option, std::less<>>;
const OptionTable& Options();

// Returns what is wrong with the options together, one text for each fault, which names the flags: "--state-slots and
// --device-state-bytes are both given, ..". Empty if nothing is wrong.
std::vector<std::string> OptionFaults(const ServerOptions& options);

}  // namespace gdn
