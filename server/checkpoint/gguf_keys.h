// Which keys of a GGUF file's header change what its linear layers compute, and whether they are read.
//
// A key that concerns the linear layers and is not read would be served with other numbers than its file means. Such a
// file is refused, and the key is named. Keys of other parts of a model (attention, experts, rope, vision) are passed
// over.
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

// Keys that are read, without the architecture's name in front; of Gated DeltaNet or of KDA.
absl::Span<const std::string_view> GgufKeysRead(bool kda);

// Whether a key (without the architecture's name) changes what linear layers compute, so that it has to be read.
bool ConcernsLinearLayers(std::string_view key);

// INVALID_ARGUMENT (INVALID_SPEC), naming the first key of the architecture that concerns linear layers and is not
// read.
absl::Status CheckGgufKeys(const GgufFile& file, std::string_view architecture, bool kda);

}  // namespace gdn
