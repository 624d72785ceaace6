// gdnctl's subcommands. Each is in the .cc file of its name in this folder.
//
// Thread safety: free functions for the main thread. Ownership: none.
//
//   for (auto commands : {InfoCommands(), SessionCommands()}) all.insert(all.end(), commands.begin(), commands.end());
#pragma once

#include <vector>

#include "tools/gdnctl/command.h"

namespace gdn {

std::vector<Command> InfoCommands();       // info, models
std::vector<Command> InspectCommands();    // models inspect
std::vector<Command> SessionCommands();    // sessions list | create | show | delete | reset | evict
std::vector<Command> LeaseCommands();      // leases list | end
std::vector<Command> SnapshotCommands();   // snapshots list | delete
std::vector<Command> StepCommands();       // prefill, decode
std::vector<Command> StateCommands();      // state export | import | .., checkpoints, sessions prefetch
std::vector<Command> StateViewCommands();  // state inspect | watch
std::vector<Command> SliceCommands();      // state slice | join
std::vector<Command> ReplayCommands();     // replay
std::vector<Command> TraceCommands();      // trace
std::vector<Command> TopCommands();        // top
std::vector<Command> AdminCommands();      // metrics, drain
std::vector<Command> TokenCommands();      // token new
std::vector<Command> HealthCommands();     // health
std::vector<Command> DoctorCommands();     // doctor
std::vector<Command> TryCommands();        // try

}  // namespace gdn
