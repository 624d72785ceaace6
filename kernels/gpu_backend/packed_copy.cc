#include "kernels/gpu_backend/packed_copy.h"

#include <memory>
#include <new>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "kernels/common/contract.h"
#include "kernels/projection/packed_weights_gpu.h"

namespace gdn::gpu {

absl::Status CopyPackedWeights(PinnedRing& ring, void* device, const WeightMatrix& host) {
  constexpr char kOp[] = "CopyWeightsIn";
  if (host.rows == 0) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(RequirePointers(kOp, {{"device", device}, {"host.data", host.data}}));
  if (host.cols % BlockOf(host.format).weights != 0) {
    return InvalidField(kOp, "host.cols", "rows of ", host.cols, " weights; expected a multiple of ",
                        BlockOf(host.format).weights, ", the block of ", WeightFormatName(host.format));
  }
  const auto bytes = static_cast<size_t>(PackedWeightBytes(host));
  if (IsPlain(host.format) && !LiesAsHalves(host)) return ring.CopyIn(device, host.data, bytes);
  if (host.format == WeightFormat::kF8E4M3) {
    GDN_RETURN_IF_ERROR(RequirePointer(kOp, "host.scales", host.scales));
  }
  const std::unique_ptr<char[]> packed(new (std::nothrow) char[bytes]);
  if (packed == nullptr) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted,
                     absl::StrCat(kOp, ": the host has no ", bytes, " bytes for a copy of a matrix"));
  }
  GDN_RETURN_IF_ERROR(PackWeights(host, packed.get()));
  return ring.CopyIn(device, packed.get(), bytes);
}

}  // namespace gdn::gpu
