// Which backend the server computes on, from --backend.
//
// Thread safety: call once, from main. Ownership: the caller's.
//
//   GDN_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend, ChooseBackend(options));
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "server/flags.h"

namespace gdn {

// "auto" takes the GPU where a usable one is found, else the CPU, and logs which and why. "gpu" without one fails with
// what the runtime said.
absl::StatusOr<std::unique_ptr<Backend>> ChooseBackend(const ServerOptions& options);

}  // namespace gdn
