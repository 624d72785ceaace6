// Says which keys of a GGUF header change what linear layers compute, and refuses those that are not supported.
//
// If such a key were ignored, the layers would compute other numbers than the file means. So the file is refused, and
// the error names the key. Keys of other parts of a model (attention, experts, rope, vision) are ignored.
// Thread safety: free functions.
// Sources of the names: llama.cpp (gguf-py/gguf/constants.py, src/llama-arch.cpp) and Ollama
// (convert/convert_qwen3next.go), which adds ssm.v_head_reordered.
//
//   GDN_RETURN_IF_ERROR(CheckGgufKeys(file, "qwen35", /*kda=*/false));
#pragma once

#include <string_view>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "server/checkpoint/gguf_file.h"

namespace gdn {

// Returns the keys that are read, without the architecture's name in front. `kda`: those of KDA, else of Gated
// DeltaNet.
absl::Span<const std::string_view> GgufKeysRead(bool kda);

// Returns true if a key (without the architecture's name) may change what linear layers compute, by the beginning of
// its name. Such a key must be read, or the file is refused.
bool ConcernsLinearLayers(std::string_view key);

// Returns OK if all keys of the architecture that concern linear layers are among GgufKeysRead(kda). Otherwise
// INVALID_ARGUMENT (INVALID_SPEC: field) names the first one that is not.
absl::Status CheckGgufKeys(const GgufFile& file, std::string_view architecture, bool kda);

}  // namespace gdn
