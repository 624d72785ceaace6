// Writes a session's states as a state file: a safetensors file. docs/reference/state-files.md describes the format.
//
// A file is made as pieces, most of them views of the image, so that writing it copies nothing. Every tensor has an
// XXH3-128 checksum in the metadata, and so has the header: any byte that is cut or changed is found before anything is
// made of the file.
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
#include "base/thread_pool.h"
#include "state_store/session_image.h"

namespace gdn {

struct StateFileOptions {
  bool include_recurrent_state = false;       // beside a log: the base with the accepted log folded in
  DType recurrent_state_dtype = DType::kF32;  // of those; kF32 or kBF16
  bool include_owner = false;                 // principal, id, affinity, lifetimes: for a tier's own files
  // "": a full file. Else a delta to that one: without the bases of layers with has_base == false, and without those
  // whose base_version is the layer's in known_bases.
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
  std::vector<std::shared_ptr<const void>> owned_;  // what the pieces need beside the image
  std::vector<std::string_view> pieces_;
  int64_t bytes_ = 0;
  std::string snapshot_id_;
};

// The base with the accepted log folded in, in wire order and float32 whatever the base is. The view has been checked.
absl::StatusOr<std::shared_ptr<std::vector<float>>> FoldedBase(const StateLayout& of, const SlotExtent& extent,
                                                               const SlotView& view);

// INVALID_ARGUMENT where the parts do not fit each other.
// Checksums are computed on `pool`, where there is one.
absl::StatusOr<EncodedStateFile> EncodeStateFile(SessionImagePtr image, const StateFileOptions& options,
                                                 SharedThreadPool* pool = nullptr);

}  // namespace gdn
