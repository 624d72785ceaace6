// Key of a decode step: steps with equal keys launch the same kernels with the same arguments, except for the addresses
// of their index arrays.
//
// Thread safety: a pure function.
//
//   backend.IssueOrReplay({.key = StepKey(step), .batch = step.batch, ..}, issue);
#pragma once

#include <string>

#include "kernels/layer/gdn_layer.h"

namespace gdn {

// Returns the key of a valid decode step, raw bytes, for Backend::IssueOrReplay.
std::string StepKey(const LayerStep& step);

}  // namespace gdn
