// The log decays of one row, a vector of channels at a time; GatingCpu's part for decays by channel and the bounded
// gate.
//
// Thread safety: a pure function but for the row that it writes. Ownership: none.
//
//   ChannelLogDecays(params, rates, row);  // params.g + row * HV * decay_dim is written
#pragma once

#include <cstdint>

#include "kernels/gating/gating.h"

namespace gdn {

// `rates` [HV]: -exp(A_log), finite.
void ChannelLogDecays(const GatingParams& params, const float* rates, int64_t row);

}  // namespace gdn
