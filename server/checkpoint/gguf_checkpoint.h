// Reads the Gated DeltaNet layers of a model in GGUF: its keys and tensors, as a Checkpoint.
//
// gguf_architecture.h lists the architectures. Each tensor of a layer may have a type of its own: F32, F16, BF16, or if
// it is a projection's a quantised one that base/weight_format.h names. ssm_a must be -exp(A_log); bailingmoe3 stores
// exp(A_log), and its sign is changed. In qwen35 and qwen4exp files, value heads are in tiled order if a key head has
// several, unless ssm.v_head_reordered is false. Ollama's spellings are read too: "ssm_dt" for "ssm_dt.bias", and
// "ssm_ba" in a qwen35 file. Keys that concern linear layers and are not known are refused (gguf_keys.h).
// Thread safety: free functions. Ownership: the Checkpoint owns the file.
//
//   GDN_ASSIGN_OR_RETURN(GgufFile file, GgufFile::Open(path));
//   GDN_ASSIGN_OR_RETURN(Checkpoint checkpoint, ReadGguf(std::move(file)));
#pragma once

#include "absl/status/statusor.h"
#include "server/checkpoint/checkpoint.h"
#include "server/checkpoint/gguf_file.h"

namespace gdn {

// Reads the config and finds the tensors of all linear layers; of the weights it only reads ssm_a. The result owns the
// file. Errors are INVALID_ARGUMENT or NOT_FOUND. They name the key or tensor, what was found and what was expected.
absl::StatusOr<Checkpoint> ReadGguf(GgufFile file);

}  // namespace gdn
