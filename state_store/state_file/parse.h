// Reads and verifies state files: whole ones, their headers alone, and those that are still arriving.
//
// Thread safety: free functions on values. Ownership: a StateFile borrows the bytes.
//
//   GDN_ASSIGN_OR_RETURN(StateFile file, ParseStateFile(bytes));
//   GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(file, layout, owner_of_bytes));
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "base/hash.h"
#include "base/safetensors.h"
#include "base/thread_pool.h"
#include "kernels/slot_codec.h"
#include "state_store/session_image.h"

namespace gdn {

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
  // Fields of the owner are empty where the file names none, and so are `layers`: those of the session, where the
  // layers below are those with a state.
  SessionHeader header;
  std::string numerics_id;
  int32_t layer_count = 0;         // above every layer index the session has, seen or not
  int32_t log_capacity = 0;        // L of the writer; 0 where the file does not say
  DType base_dtype = DType::kF32;  // of the writer's bases; where kBF16, that of the tensors they are in
  std::string snapshot_id;
  std::string base_snapshot_id;  // "": a full file
  absl::Time created;
  bool has_owner = false;
  std::vector<StateFileLayer> layers;                                // ascending
  std::vector<std::shared_ptr<const std::vector<float>>> converted;  // what is not aligned F32 in the file
};

// DATA_LOSS (INVALID_STATE_FILE: tensor), naming the tensor, or "header", where the file is cut, damaged or
// inconsistent in itself. A file of another tool needs only format, format_version "1", dims, layer_count and token
// counts, and may have no checksums; a layer with only `layer.L.recurrent_state` (and, in a model session, conv_state)
// is a base with no log.
// A log of another log_capacity is not taken over: the recurrent_state beside it is then the base, and without one the
// answer is FAILED_PRECONDITION (STATE_MISMATCH); so it is for a log as long as log_capacity. `bytes` must outlive the
// result.
// Checksums are computed on `pool`, where there is one.
absl::StatusOr<StateFile> ParseStateFile(std::string_view bytes, SharedThreadPool* pool = nullptr);

// Only the header is read and verified: for listings. `bytes` may end where the header does; `file_bytes` is the whole
// file's size, which must be what the header says. Views are empty.
absl::StatusOr<StateFile> ParseStateFileHeader(std::string_view bytes, int64_t file_bytes);

// One tensor of a file: where it lies, and what its bytes must sum up to.
struct SealedTensor {
  std::string name;
  std::string checksum;  // HashBytes, in hexadecimal
  uint64_t begin = 0;    // in the file
  uint64_t end = 0;
  // DATA_LOSS (INVALID_STATE_FILE: tensor) where `found` is another checksum.
  absl::Status Check(const Hash128& found) const;
};

// Verifies a file while it arrives, so that little is left to do when its last byte is there. For one thread at a time.
class ArrivingStateFile {
 public:
  // `bytes` have the whole header; file_bytes as for ParseStateFileHeader, or 0 where only the header knows. Errors as
  // there.
  static absl::StatusOr<ArrivingStateFile> Open(std::string_view bytes, int64_t file_bytes);

  const StateFile& header() const { return header_; }  // as of ParseStateFileHeader
  int64_t file_bytes() const { return static_cast<int64_t>(file_.header_bytes() + file_.data_bytes()); }
  // Those with a checksum, in the order of the file: for whoever reads it in pieces and keeps none.
  const std::vector<SealedTensor>& tensors() const { return tensors_; }
  // Checks the tensors that have become whole. `bytes` is the file so far. Errors as of ParseStateFile.
  absl::Status Check(std::string_view bytes, SharedThreadPool* pool = nullptr);
  // `bytes` is the whole file. Errors as of ParseStateFile.
  absl::StatusOr<StateFile> Finish(std::string_view bytes);

 private:
  explicit ArrivingStateFile(SafetensorsFile file) : file_(std::move(file)) {}

  SafetensorsFile file_;
  StateFile header_;
  std::vector<SealedTensor> tensors_;
  size_t checked_ = 0;  // of them
};

}  // namespace gdn
