// Inputs out of a recording of a model's layers (golden_io.h describes the file), for single steps of gdnctl.
//
// Thread safety: free functions. Ownership: the tensor is a copy.
//
//   if (const std::string name = RecordedPrefill(file, layer); !name.empty()) {
//     GDN_ASSIGN_OR_RETURN(tensor, RecordedSequence(file, name, /*sequence=*/0));
//   }
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/safetensors.h"
#include "client/cpp/client.h"

namespace gdn {

// The name of the recorded input of a layer's prefill, or of its decode step; "" if the file has none.
std::string RecordedPrefill(const SafetensorsFile& file, int32_t layer);
std::string RecordedDecode(const SafetensorsFile& file, int32_t layer, int64_t step);

// [T, D] of one sequence of a tensor [B, T, D]. INVALID_ARGUMENT if the tensor has other dimensions or fewer sequences.
absl::StatusOr<v1::Tensor> RecordedSequence(const SafetensorsFile& file, const std::string& name, int64_t sequence);
// [count, T, D] of `count` sequences. Errors as above.
absl::StatusOr<v1::Tensor> RecordedSequences(const SafetensorsFile& file, const std::string& name, int64_t first,
                                             int64_t count);

}  // namespace gdn
