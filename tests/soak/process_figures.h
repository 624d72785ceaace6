// What a process takes of its machine, and which processors one has.
//
// Thread safety: free functions; ThisThreadRunsOn concerns the calling thread, and those that it makes later.
//
//   GDN_ASSIGN_OR_RETURN(const ProcessFigures figures, ReadProcess(server.pid()));
//   std::cout << figures.peak_resident_bytes << " bytes, " << figures.descriptors << " descriptors";
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

struct ProcessFigures {
  int64_t resident_bytes = 0;
  int64_t peak_resident_bytes = 0;
  int64_t descriptors = 0;
};

// NOT_FOUND where there is no such process.
absl::StatusOr<ProcessFigures> ReadProcess(pid_t pid);

// The processors that the calling thread may run on.
std::vector<int> Processors();
// Errors of the system call.
absl::Status ThisThreadRunsOn(const std::vector<int>& processors);

// "2 processors, AMD EPYC": of this machine, for people.
std::string MachineName();

}  // namespace gdn
