// A backend that allocates memory and computes nothing: outputs are zeros, states do not change. Used to measure the
// service around the kernels.
//
// Thread safety: see Backend.
//
//   auto backend = MakeNullBackend();
#pragma once

#include <memory>

#include "kernels/backend.h"

namespace gdn {

std::unique_ptr<Backend> MakeNullBackend();

}  // namespace gdn
