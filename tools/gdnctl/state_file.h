// State files as gdnctl reads them: what the header says, and whether every byte is what was written.
//
// docs/reference/state-files.md describes the format. Thread safety: free functions. Ownership: plain values.
//
//   GDN_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::Open(path));
//   GDN_ASSIGN_OR_RETURN(const StateFileReport report, InspectStateFile(file.bytes()));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"

namespace gdn {

struct StateFileReport {
  struct Layer {
    int32_t layer = 0;
    int64_t token_count = 0;
    int64_t log_length = 0;
    int64_t draft_length = 0;
    bool draft_is_tree = false;
    std::string input_kind;
    bool has_base = true;            // false in a delta whose reader has it
    std::string reply_request_id;    // of the stored reply; "": none
    std::vector<std::string> parts;  // its tensors: "conv_state", ..
    int64_t bytes = 0;
  };
  std::map<std::string, std::string> metadata;
  v1::LayerDims dims;
  int32_t layer_count = 0;
  std::vector<Layer> layers;  // those with a state, ascending
  int tensors = 0;
  int64_t bytes = 0;            // of the file
  bool header_checked = false;  // a checksum of the header was there, and right
  int tensors_checked = 0;      // as many tensors had a checksum, and it was right

  std::string Text(const std::string& key) const;  // of the metadata; "" where it has none
};

// DATA_LOSS (INVALID_STATE_FILE: tensor), naming the tensor, or "header", where the file is cut, damaged or none.
absl::StatusOr<StateFileReport> InspectStateFile(std::string_view bytes);

// Of the model with all its heads, where the file has some.
std::string WholeFingerprint(const StateFileReport& file);
std::string HeadsOf(const StateFileReport& file);  // "0-15/32"; "": all

// Chooses what the file's session is to be of: an operator of its dims, or the model of `models` with its fingerprint,
// whole or a slice, the one of its name where several have it. FAILED_PRECONDITION (STATE_MISMATCH) where none has.
absl::Status SetTargetSpec(const StateFileReport& file, const std::vector<v1::Model>& models,
                           v1::ImportStateRequest::Target* target);

}  // namespace gdn
