// gdnctl: the command-line client of the Gated DeltaNet service. `gdnctl --help` lists its commands.
#include <cstdlib>
#include <string>
#include <vector>

#include "base/standard_streams.h"
#include "tools/gdnctl/commands.h"

int main(int argc, char** argv) {
  gdn::OpenStandardStreams();
  // The error of a call says in words what gRPC would log.
  setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
  std::vector<gdn::Command> commands;
  for (const auto& group :
       {gdn::InfoCommands(), gdn::InspectCommands(), gdn::SessionCommands(), gdn::LeaseCommands(),
        gdn::SnapshotCommands(), gdn::StepCommands(), gdn::ReplayCommands(), gdn::StateCommands(),
        gdn::StateViewCommands(), gdn::SliceCommands(), gdn::TraceCommands(), gdn::TopCommands(), gdn::AdminCommands(),
        gdn::TokenCommands(), gdn::HealthCommands(), gdn::DoctorCommands(), gdn::TryCommands()}) {
    commands.insert(commands.end(), group.begin(), group.end());
  }
  return gdn::RunCommandLine(commands, std::vector<std::string>(argv + 1, argv + argc));
}
