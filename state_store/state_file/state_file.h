// State files: a session's states as a safetensors file, and back. docs/state-files.md describes the format.
//
// A file is made as pieces, most of them views of the image, so that writing it copies nothing. Every tensor has an
// XXH3-128 checksum in the metadata, and so has the header: any byte that is cut or changed is found before anything is
// made of the file.
// A delta leaves out the base states that its reader has from an earlier file; MergeDelta puts the two together.
// Thread safety: free functions on values; a EncodedStateFile is constant. Ownership: a EncodedStateFile keeps its image alive; a
// StateFile borrows the bytes.
//
//   GDN_ASSIGN_OR_RETURN(EncodedStateFile file, EncodeStateFile(image, {}));
//   for (std::string_view piece : file.pieces()) write(piece);
//   GDN_ASSIGN_OR_RETURN(StateFile again, ParseStateFile(bytes));
//   GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(again, layout, owner_of_bytes));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "base/safetensors.h"
#include "base/thread_pool.h"
#include "state_store/session_image.h"
#include "state_store/slot_codec.h"

namespace gdn {

struct StateFileOptions {
  bool include_recurrent_state = false;       // beside a log: the base with the accepted log folded in
  DType recurrent_state_dtype = DType::kF32;  // of those; kF32 or kBF16
  bool include_owner = false;                 // principal, id, affinity, lifetimes: for a tier's own files
  // "": a full file. Else a delta to that one: without the bases of layers with has_base == false, and without those whose
  // base_version is the layer's in known_bases.
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

// INVALID_ARGUMENT where the parts do not fit each other.
// Checksums are computed on `pool`, where there is one.
absl::StatusOr<EncodedStateFile> EncodeStateFile(SessionImagePtr image, const StateFileOptions& options,
                                                 SharedThreadPool* pool = nullptr);

struct StateFileLayer {
  int32_t layer = 0;
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  bool has_base = true;  // false in a delta
  SlotView view;         // into the file's bytes, or into `converted`; recurrent_state as base where the log is empty
  StoredReplyPtr reply;
};

// A parsed and verified file.
struct StateFile {
  // Fields of the owner are empty where the file names none, and so are `layers`: those of the session, where the layers
  // below are those with a state.
  SessionHeader header;
  std::string numerics_id;
  int32_t layer_count = 0;   // above every layer index the session has, seen or not
  int32_t log_capacity = 0;  // L of the writer; 0 where the file does not say
  std::string snapshot_id;
  std::string base_snapshot_id;  // "": a full file
  absl::Time created;
  bool has_owner = false;
  std::vector<StateFileLayer> layers;                                // ascending
  std::vector<std::shared_ptr<const std::vector<float>>> converted;  // what is not aligned F32 in the file
};

// DATA_LOSS (INVALID_STATE_FILE: tensor), naming the tensor, or "header", where the file is cut, damaged or inconsistent in
// itself. A file of another tool needs only format, format_version "1", dims, layer_count and token counts, and may have no
// checksums; a layer with only `layer.L.recurrent_state` (and, in a model session, conv_state) is a base with no log.
// A log of another log_capacity is not taken over: the recurrent_state beside it is then the base, and without one the
// answer is FAILED_PRECONDITION (STATE_MISMATCH); so it is for a log as long as log_capacity. `bytes` must outlive the
// result.
// Checksums are computed on `pool`, where there is one.
absl::StatusOr<StateFile> ParseStateFile(std::string_view bytes, SharedThreadPool* pool = nullptr);

// Only the header is read and verified: for listings. `bytes` may end where the header does; `file_bytes` is the whole
// file's size, which must be what the header says. Views are empty.
absl::StatusOr<StateFile> ParseStateFileHeader(std::string_view bytes, int64_t file_bytes);

// Verifies a file while it arrives, so that little is left to do when its last byte is there. For one thread at a time.
class ArrivingStateFile {
 public:
  // `bytes` have the whole header; file_bytes as for ParseStateFileHeader, or 0 where only the header knows. Errors as
  // there.
  static absl::StatusOr<ArrivingStateFile> Open(std::string_view bytes, int64_t file_bytes);

  const StateFile& header() const { return header_; }  // as of ParseStateFileHeader
  int64_t file_bytes() const { return static_cast<int64_t>(file_.header_bytes() + file_.data_bytes()); }
  // Checks the tensors that have become whole. `bytes` is the file so far. Errors as of ParseStateFile.
  absl::Status Check(std::string_view bytes, SharedThreadPool* pool = nullptr);
  // `bytes` is the whole file. Errors as of ParseStateFile.
  absl::StatusOr<StateFile> Finish(std::string_view bytes);

 private:
  struct Sealed {
    std::string name;
    std::string checksum;
    uint64_t end = 0;  // in the file
  };

  explicit ArrivingStateFile(SafetensorsFile file) : file_(std::move(file)) {}

  SafetensorsFile file_;
  StateFile header_;
  std::vector<Sealed> tensors_;  // in the order of the file
  size_t checked_ = 0;           // of them
};

// The file's states as an image in wire order; nothing is copied. `layout`'s dims must be the file's; `owner` keeps the
// bytes of the file alive. FAILED_PRECONDITION (STATE_MISMATCH) where a draft is longer than the layout's, or for a delta.
absl::StatusOr<SessionImage> ReadImage(const StateFile& file, const StateLayout& layout,
                                       std::shared_ptr<const void> owner);

// Gives the layers of `delta` without a base that of `full`, which must outlive it. FAILED_PRECONDITION (STATE_MISMATCH)
// where it is a delta to another file.
absl::Status CompleteDelta(const StateFile& full, StateFile& delta);

// The full file that `delta` stands for, given the full file it is a delta to: tensors and metadata are the delta's, and
// the bases it leaves out the full file's. FAILED_PRECONDITION (STATE_MISMATCH) where it is a delta to another.
absl::StatusOr<std::string> MergeDelta(std::string_view full, std::string_view delta);

}  // namespace gdn
