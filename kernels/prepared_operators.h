// Operators that acquire what they need before the first of them runs, so that a row of them does not fail midway.
//
// Thread safety: for the thread that issues operators. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(PrepareOperators(backend, [&] { return backend.DeltaRuleDecode(params); }));  // in vain
//   GDN_RETURN_IF_ERROR(backend.DeltaRuleDecode(params));
#pragma once

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "kernels/backend.h"

namespace gdn {

// What a backend is beside Backend if its operators acquire anything: scratch memory, workspaces, index arrays on the
// device, kernels' code.
class PreparesOperators {
 public:
  virtual ~PreparesOperators() = default;
  virtual absl::Status Prepare(absl::FunctionRef<absl::Status()> issue) = 0;
};

// Runs `issue`, which issues operators and copies within backend memory, in vain: nothing is computed, launched or
// copied, and all that they need is acquired. The same operators, issued next, do not fail for want of it. `issue`
// changes nothing that its caller sees.
inline absl::Status PrepareOperators(Backend& backend, absl::FunctionRef<absl::Status()> issue) {
  auto* const prepares = dynamic_cast<PreparesOperators*>(&backend);
  return prepares == nullptr ? absl::OkStatus() : prepares->Prepare(issue);
}

}  // namespace gdn
