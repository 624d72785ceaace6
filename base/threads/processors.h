// Number of processors this process may use. All code that sizes thread pools or heaps calls this, so a server that is
// limited to 2 of 64 processors behaves as on a machine with 2.
//
// Thread safety: a free function of no state.
//
//   ThreadPool pool(AvailableProcessors());
#pragma once

namespace gdn {

// Returns the number of processors in this process's affinity mask, or fewer if a control group limits its CPU time
// (rounded up to whole processors). At least 1.
int AvailableProcessors();

}  // namespace gdn
