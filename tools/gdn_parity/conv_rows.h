// Causal conv1d problems, for the suites that bring other people's shapes.
//
// Thread safety: free functions; one thread at a time on one backend.
//
//   return CompareConv({.channels = 1024, .width = 4, .lengths = {64, 64}}, backend, random);
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/random_tensor.h"

namespace gdn::parity {

struct ConvProblem {
  int32_t channels = 0;  // a multiple of 4
  int32_t width = 0;
  std::vector<int32_t> lengths;  // of each call
  int calls = 1;
  bool fresh = false;          // else the slots hold random columns
  bool channel_major = false;  // x comes as [C, T] a sequence and is transposed on the device; needs a GPU backend
};

// Dimensions of a layer with this many convolution channels.
LayerDims ConvDims(int32_t channels, int32_t width);

// Outputs and final columns against the reference's; each call is dumped as op "causal_conv1d".
absl::StatusOr<Difference> CompareConv(const ConvProblem& problem, Backend& backend, RandomTensor& random);

}  // namespace gdn::parity
