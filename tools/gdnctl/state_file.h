// Inspects state files for gdnctl: reads the header and verifies all checksums.
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
    bool has_base = true;            // false if a delta leaves the base out
    std::string reply_request_id;    // request id of the stored reply; "": there is none
    std::vector<std::string> parts;  // names of its tensors: "conv_state", ..
    int64_t bytes = 0;
  };
  std::map<std::string, std::string> metadata;
  v1::LayerDims dims;
  int32_t layer_count = 0;
  std::vector<Layer> layers;  // layers with a state, ascending
  int tensors = 0;
  int64_t bytes = 0;            // size of the file
  bool header_checked = false;  // the header had a checksum, and it was right
  int tensors_checked = 0;      // number of tensors that had a checksum, which was right

  std::string Text(const std::string& key) const;  // returns a metadata entry; "" if there is none
};

// Reads the header of a whole state file, and verifies the checksums of the header and of all tensors. DATA_LOSS
// (INVALID_STATE_FILE: the tensor, or "header") if the file is cut, damaged or not a state file.
absl::StatusOr<StateFileReport> InspectStateFile(std::string_view bytes);

// Returns the fingerprint of the model with all its heads, also if the file has only some of them; "" for an operator.
std::string WholeFingerprint(const StateFileReport& file);
std::string HeadsOf(const StateFileReport& file);  // "0-15/32"; "": all

// Sets the target's operator to the file's dims if the file is of an operator session. Else sets its model to the one
// in `models` with the file's fingerprint (whole or a slice; if several match, the one with the file's name).
// FAILED_PRECONDITION (STATE_MISMATCH) if none matches.
absl::Status SetTargetSpec(const StateFileReport& file, const std::vector<v1::Model>& models,
                           v1::ImportStateRequest::Target* target);

}  // namespace gdn
