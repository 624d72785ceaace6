#include "state_store/tiers/disk/stored_file.h"

#include <bit>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Bytes of the first read. Most headers end within them, so one call is enough.
constexpr int64_t kGuessedBytes = int64_t{64} << 10;

}  // namespace

absl::StatusOr<FileStart> ReadHead(absl::FunctionRef<absl::StatusOr<FileStart>(int64_t)> first_bytes) {
  static_assert(std::endian::native == std::endian::little);
  absl::StatusOr<FileStart> start = first_bytes(kGuessedBytes);
  uint64_t header_bytes = 0;
  if (!start.ok() || start->bytes.size() < sizeof(header_bytes)) return start;
  std::memcpy(&header_bytes, start->bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMostSafetensorsHeaderBytes) return start;
  const auto needed = static_cast<int64_t>(sizeof(header_bytes) + header_bytes);
  if (needed <= kGuessedBytes || needed > start->file_bytes) return start;
  return first_bytes(needed);
}

absl::Status CheckOwner(const StateKey& key, const StateFile& file) {
  if (file.has_owner && file.header.principal == key.principal && file.header.id == key.id) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the file is another session's or another principal's, and not that of ", key.ToString()),
                   {{"tensor", "header"}});
}

bool IsTierFailure(const absl::Status& status) {
  return !status.ok() && !absl::IsNotFound(status) && !absl::IsResourceExhausted(status);
}

StoredSession DescribeStored(const StateKey& key, StateFile file, int64_t bytes) {
  StoredSession stored{.key = key,
                       .header = std::move(file.header),
                       .layers = {},
                       .kinds = {},
                       .stored_at = file.created,
                       .bytes = bytes};
  for (const StateFileLayer& layer : file.layers) {
    stored.layers.emplace_back(layer.layer, layer.extent);
    stored.kinds.push_back(layer.kind);
  }
  return stored;
}

}  // namespace gdn
