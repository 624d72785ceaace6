// The backend that this run of a test program is about: $GDN_TEST_BACKEND, "cpu" where that is not set.
//
// "host" is the GPU sources on the SIMT executor (waves of $GDN_HOST_WAVE_WIDTH lanes), "gpu" the same on a device; which of
// the two a build has is decided by its preset. Thread safety: free functions.
//
//   std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/2);
#pragma once

#include <memory>
#include <string>

#include "kernels/backend.h"

namespace gdn {

std::string TestBackendName();

// Ends the program with the reason where the backend cannot be made: a test that ran on another would say nothing.
std::unique_ptr<Backend> MakeTestBackend(int threads);

}  // namespace gdn
