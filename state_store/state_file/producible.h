// Whether a layer's fields in a state file are ones that calls of the API could have made. For this folder alone.
//
// A file may come from anybody, with checksums that fit. Whatever is believed of it later (a reply's bytes, a log's
// decays, ids that stay in memory) is held to the API's own limits here.
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

// DATA_LOSS (INVALID_STATE_FILE: tensor) each.

// An operator session takes no input but delta_rule.
absl::Status CheckInputKind(const LayerDims& dims, const LayerEntry& entry, int32_t layer);

// U8, of one dimension, and as long as a number of tokens that one step can have, in a dtype of outputs.
absl::Status CheckReplyTensor(const LayerDims& dims, const LayerEntry& entry, const std::string& name,
                              const SafetensorsEntry& tensor);

// No log decay is above 0. NaN is legal: a step with allow_non_finite makes it.
absl::Status CheckLogDecays(const std::string& name, absl::Span<const float> log_g);

}  // namespace gdn::state_file
