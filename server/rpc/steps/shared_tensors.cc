#include "server/rpc/steps/shared_tensors.h"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int64_t kCopyAlignment = 64;  // bytes: a cache line, for each copy

int64_t Aligned(int64_t bytes) { return (bytes + kCopyAlignment - 1) / kCopyAlignment * kCopyAlignment; }

// Finds the region of a range, and checks that the region contains the range.
absl::StatusOr<SharedRegionPtr> RegionOf(const SharedRegions& regions, const std::string& principal,
                                         const v1::SharedRange& range) {
  GDN_ASSIGN_OR_RETURN(SharedRegionPtr region, regions.Find(principal, range.region()));
  GDN_RETURN_IF_ERROR(region->CheckRange(range.offset(), range.bytes()));
  GDN_RETURN_IF_ERROR(region->CheckSize(range.offset() + range.bytes()));
  return region;
}

absl::Status InField(std::string_view field, const absl::Status& status) {
  return WithMetadata(WithPrefix(status, field), "field", field);
}

}  // namespace

bool SharedTensors::UsedBy(const CheckedInput& input) {
  return input.output_shared != nullptr ||
         std::any_of(input.fields.begin(), input.fields.end(),
                     [](const CheckedField& field) { return field.shared != nullptr; });
}

absl::Status SharedTensors::Load(const SharedRegions& regions, const std::string& principal, int64_t message_bytes,
                                 const StepLimits& limits, HostBlockPool& memory, ByteCharge& charge,
                                 CheckedInput& input) {
  std::vector<std::pair<CheckedField*, SharedRegionPtr>> found;
  int64_t bytes = 0;
  for (CheckedField& field : input.fields) {
    if (field.shared == nullptr) continue;
    auto region = RegionOf(regions, principal, *field.shared);
    if (!region.ok()) return InField(field.name, region.status());
    found.emplace_back(&field, *std::move(region));
    bytes += Aligned(field.shared->bytes());
    message_bytes += field.shared->bytes();
  }
  GDN_RETURN_IF_ERROR(CheckMessageSize(message_bytes, limits));
  if (input.output_shared != nullptr) {
    auto region = RegionOf(regions, principal, *input.output_shared);
    if (!region.ok()) return InField("output_shared", region.status());
    output_region_ = *std::move(region);
    output_range_ = input.output_shared;
  }
  if (found.empty()) return absl::OkStatus();
  GDN_RETURN_IF_ERROR(charge.TryGrow(bytes));
  GDN_ASSIGN_OR_RETURN(copies_, memory.TakeForCall(static_cast<size_t>(bytes)));
  char* to = copies_.chars();
  for (const auto& [field, region] : found) {
    const auto size = static_cast<size_t>(field->shared->bytes());
    if (absl::Status read = region->Read(field->shared->offset(), {to, size}); !read.ok()) {
      return InField(field->name, read);
    }
    field->view.data = {to, size};
    to += Aligned(field->shared->bytes());
  }
  return absl::OkStatus();
}

bool SharedTensors::PutOutput(std::string_view data, v1::Tensor& output) const {
  if (!output_region_->Write(output_range_->offset(), data).ok()) return false;
  *output.mutable_shared() = *output_range_;
  return true;
}

void SharedTensors::Clear() {
  copies_ = HostBlock();
  output_region_ = nullptr;
}

}  // namespace gdn
