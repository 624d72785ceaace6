// A backend whose delta rule uses libgdn's C interface, so that gdn_parity's rows can run on it. All other operators
// are UNIMPLEMENTED, and so are drafts and shared bases, which the interface does not offer.
//
// Thread safety: as Backend. Ownership: owns libgdn's context and the backend that gives it memory.
//
//   GDN_ASSIGN_OR_RETURN(auto backend, MakeBackendThroughLibgdn("cpu"));
//   RunCases(AllCases(), *backend, seed, std::cout);
#pragma once

#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace gdn {

// `name`: "cpu" or "gpu".
absl::StatusOr<std::unique_ptr<Backend>> MakeBackendThroughLibgdn(std::string_view name);

}  // namespace gdn
