// How many processors this process may use. Whatever makes threads or heaps asks here, so that a server which is given
// two processors of sixty-four behaves as on a machine of two.
//
// Thread safety: a free function of no state.
//
//   ThreadPool pool(AvailableProcessors());
#pragma once

namespace gdn {

// Processors in this process's affinity mask, or fewer where a control group limits its processor time. At least 1.
int AvailableProcessors();

}  // namespace gdn
