// What a step's launches are made of, as bytes: steps of equal keys launch the same kernels with the same arguments,
// but for where their index arrays are.
//
// Thread safety: a pure function.
//
//   backend.IssueOrReplay({.key = StepKey(step), .batch = step.batch, ..}, issue);
#pragma once

#include <string>

#include "kernels/layer/gdn_layer.h"

namespace gdn {

// Of a step that is valid.
std::string StepKey(const LayerStep& step);

}  // namespace gdn
