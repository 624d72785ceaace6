// Reads inputs for gdnctl's single steps from a recording of a model's layers (golden_io.h describes the file).
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
#include "base/files/safetensors.h"
#include "client/cpp/client.h"

namespace gdn {

// Return the name of the recorded input of a layer's prefill or decode step; "" if the file has none.
std::string RecordedPrefill(const SafetensorsFile& file, int32_t layer);
std::string RecordedDecode(const SafetensorsFile& file, int32_t layer, int64_t step);

// Returns one sequence, [T, D], of a tensor [B, T, D], with the tensor's dtype. INVALID_ARGUMENT if the rank differs or
// `sequence` is not in [0, B). Errors of SafetensorsFile::Tensor.
absl::StatusOr<v1::Tensor> RecordedSequence(const SafetensorsFile& file, const std::string& name, int64_t sequence);
// Returns sequences [first, first + count) of a tensor [B, T, D], as [count, T, D]. Errors as of RecordedSequence.
absl::StatusOr<v1::Tensor> RecordedSequences(const SafetensorsFile& file, const std::string& name, int64_t first,
                                             int64_t count);

}  // namespace gdn
