// Checks that a layer's fields in a state file are ones that calls of the API could have made. For this folder only.
//
// Anybody may write a file with valid checksums. So the fields that are used later (a reply's bytes, a log's decays,
// ids that stay in memory) must be within the API's own limits.
// Thread safety: free functions on values.
//
//   GDN_RETURN_IF_ERROR(CheckReplyTensor(dims, entry, name, tensor));
//   GDN_RETURN_IF_ERROR(CheckLogDecays(name, view.log_g));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/layer_dims.h"
#include "base/safetensors.h"
#include "state_store/state_file/metadata.h"

namespace gdn::state_file {

// Each returns DATA_LOSS (INVALID_STATE_FILE: tensor) if its check fails.

// The kind of the last input must be one that layers of these dims take: a bare operator takes only delta_rule.
absl::Status CheckInputKind(const LayerDims& dims, const LayerEntry& entry, int32_t layer);

// The tensor must be U8 of one dimension, and as long as the F32, F16 or BF16 output of a possible number of tokens.
absl::Status CheckReplyTensor(const LayerDims& dims, const LayerEntry& entry, const std::string& name,
                              const SafetensorsEntry& tensor);

// No log decay may be above 0. NaN is allowed, because a step with allow_non_finite may produce it.
absl::Status CheckLogDecays(const std::string& name, absl::Span<const float> log_g);

}  // namespace gdn::state_file
