// Parses and verifies state files: whole files, headers only, and files that are still arriving.
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
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/threads/thread_pool.h"
#include "kernels/slot_codec.h"
#include "state_store/session_image.h"

namespace gdn {

struct StateFileLayer {
  int32_t layer = 0;
  SlotExtent extent;
  InputKind kind = InputKind::kNone;
  bool has_base = true;  // false in a delta
  SlotView view;         // views the file's bytes or `converted`; if the log is empty, the base is recurrent_state
  StoredReplyPtr reply;
};

// A parsed and verified file.
struct StateFile {
  // Without an owner entry in the file, the owner's fields are empty. header.layers: all layers of the session; empty
  // if the file has neither an entry "layers" nor an owner. (`layers` below: only those with a state.)
  SessionHeader header;
  std::string numerics_id;
  int32_t layer_count = 0;         // more than every layer index of the session, with or without a state
  int32_t log_capacity = 0;        // L of the writer; 0 if the file does not have it
  DType base_dtype = DType::kF32;  // of the writer's bases; with kBF16, their tensors have this dtype too
  std::string snapshot_id;
  std::string base_snapshot_id;  // the full file to which this one is a delta; "": this one is full
  absl::Time created;
  bool has_owner = false;
  std::vector<StateFileLayer> layers;                                // ascending
  std::vector<std::shared_ptr<const std::vector<float>>> converted;  // copies of tensors that cannot be viewed in place
};

// Parses and verifies a whole file. `bytes` must outlive the result. Computes checksums on `pool`, unless that is
// nullptr. DATA_LOSS (INVALID_STATE_FILE: the tensor, or "header") if the file is cut, damaged or contradicts itself.
// A file of another tool needs only format, format_version "1", dims, layer_count and token counts; checksums are
// optional. A layer with only `layer.L.recurrent_state` (and conv_state, in a model session) is a base without a log.
// A log of another log_capacity cannot be continued: the recurrent_state in the file becomes the base. If there is
// none, or a log has log_capacity entries or more: FAILED_PRECONDITION (STATE_MISMATCH).
absl::StatusOr<StateFile> ParseStateFile(std::string_view bytes, SharedThreadPool* pool = nullptr);

// Parses and verifies only the header, for listings. `bytes` may end after the header. `file_bytes` is the size of the
// whole file, which must match the header. The views in the result are empty and it does not borrow `bytes`. A layer's
// reply is there only if its output was dropped, else nullptr. Errors as of ParseStateFile.
absl::StatusOr<StateFile> ParseStateFileHeader(std::string_view bytes, int64_t file_bytes);

// A tensor's name, its byte range in a file, and its expected checksum. Views nothing of the file.
struct SealedTensor {
  std::string name;
  std::string checksum;  // HashBytes, in hexadecimal
  uint64_t begin = 0;    // byte offsets in the file: [begin, end)
  uint64_t end = 0;
  // DATA_LOSS (INVALID_STATE_FILE: tensor) if `found` differs from `checksum`.
  absl::Status Check(const Hash128& found) const;
};

// Verifies a file while it arrives, so that little is left to do after its last byte. For one thread at a time.
class ArrivingStateFile {
 public:
  // Begins with the header of a file that arrives. `bytes` must contain the whole header. `file_bytes`: as for
  // ParseStateFileHeader, or 0 if only the header says it. Errors as of ParseStateFileHeader.
  static absl::StatusOr<ArrivingStateFile> Open(std::string_view bytes, int64_t file_bytes);

  const StateFile& header() const { return header_; }  // as of ParseStateFileHeader
  int64_t file_bytes() const { return static_cast<int64_t>(file_.header_bytes() + file_.data_bytes()); }
  // The tensors that have a checksum, in file order, for callers that read the file in pieces without keeping them.
  const std::vector<SealedTensor>& tensors() const { return tensors_; }
  // Verifies the tensors that have become complete since the last call. `bytes` is the whole file so far, from its
  // first byte, and may have moved. Errors as of ParseStateFile.
  absl::Status Check(std::string_view bytes, SharedThreadPool* pool = nullptr);
  // Verifies what Check has not verified yet, and parses the whole file, `bytes`, which must outlive the result. Errors
  // as of ParseStateFile.
  absl::StatusOr<StateFile> Finish(std::string_view bytes);

 private:
  explicit ArrivingStateFile(SafetensorsFile file) : file_(std::move(file)) {}

  SafetensorsFile file_;
  StateFile header_;
  std::vector<SealedTensor> tensors_;
  size_t checked_ = 0;  // number of tensors_ that are verified
};

}  // namespace gdn
