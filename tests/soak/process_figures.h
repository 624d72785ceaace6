// A process's use of memory and descriptors, and the machine's processors.
//
// Thread safety: free functions; ThisThreadRunsOn affects the calling thread and threads that it makes later.
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

// NOT_FOUND if there is no such process.
absl::StatusOr<ProcessFigures> ReadProcess(pid_t pid);

// Returns the processors that the calling thread may run on.
std::vector<int> Processors();
// Restricts the calling thread to these processors. Errors of the system call.
absl::Status ThisThreadRunsOn(const std::vector<int>& processors);

// Describes this machine for people, such as "2 processors, AMD EPYC".
std::string MachineName();

}  // namespace gdn
