// Writes a session's states as a state file: a safetensors file. docs/reference/state-files.md describes the format.
//
// A file is a list of pieces. Most of them view the image, so writing copies nothing. The metadata has an XXH3-128
// checksum of every tensor and of the header, so a reader detects any cut or changed byte before it uses the file.
// Thread safety: free functions on values; an EncodedStateFile is constant. Ownership: an EncodedStateFile keeps its
// image alive.
//
//   GDN_ASSIGN_OR_RETURN(EncodedStateFile file, EncodeStateFile(image, {}));
//   for (std::string_view piece : file.pieces()) write(piece);
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/threads/thread_pool.h"
#include "state_store/session_image.h"

namespace gdn {

struct StateFileOptions {
  bool include_recurrent_state = false;       // for layers with a log, also write the base with the log folded in
  DType recurrent_state_dtype = DType::kF32;  // dtype of these extra tensors: kF32 or kBF16
  bool include_owner = false;                 // write principal, id, affinity and lifetimes, as tiers do
  bool list_layers = false;                   // for a model's session: write its layers, as exports do
  // "": a full file. Otherwise the snapshot id of a full file, to which this one is a delta. It leaves out the bases of
  // layers with has_base == false, and of layers whose base_version is in known_bases.
  std::string base_snapshot_id = {};
  BaseVersions known_bases = {};
};

class EncodedStateFile {
 public:
  const std::vector<std::string_view>& pieces() const { return pieces_; }
  int64_t bytes() const { return bytes_; }
  const std::string& snapshot_id() const { return snapshot_id_; }  // 32 hexadecimal digits; no two files share one

 private:
  friend absl::StatusOr<EncodedStateFile> EncodeStateFile(SessionImagePtr, const StateFileOptions&, SharedThreadPool*);
  SessionImagePtr image_;
  std::vector<std::shared_ptr<const void>> owned_;  // buffers that the pieces view, besides the image
  std::vector<std::string_view> pieces_;
  int64_t bytes_ = 0;
  std::string snapshot_id_;
};

// Returns the base [HV, K, V] with the accepted log folded in: wire order, float32, even if the base is bfloat16. The
// draft is left out. `view` must have passed CheckSlotView. INVALID_ARGUMENT only for bad dims.
absl::StatusOr<std::shared_ptr<std::vector<float>>> FoldedBase(const StateLayout& of, const SlotExtent& extent,
                                                               const SlotView& view);

// Makes a state file of the image, which it keeps alive, with a new snapshot id. INVALID_ARGUMENT if the image's parts
// do not fit each other or the options. Converts and computes checksums on `pool`; nullptr: on the calling thread.
absl::StatusOr<EncodedStateFile> EncodeStateFile(SessionImagePtr image, const StateFileOptions& options,
                                                 SharedThreadPool* pool = nullptr);

}  // namespace gdn
