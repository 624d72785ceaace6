#include "client/cpp/layer_digests.h"

#include <algorithm>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kScales = "_scale_inv";  // the name's end, and the scales' name in a digest

absl::StatusOr<const OwnTensor*> FindTensor(absl::Span<const OwnTensor> tensors, std::string_view name) {
  const auto* const found = std::ranges::find(tensors, name, &OwnTensor::name);
  if (found != tensors.end()) return found;
  return absl::InvalidArgumentError(StrCat("tensor '", name, "' is missing; give all of Model.digest_tensors"));
}

void AddTensor(Hasher& hasher, std::string_view name, const OwnTensor& tensor) {
  hasher.UpdateField(name);
  hasher.UpdateField(tensor.format);
  hasher.UpdateInt(static_cast<int64_t>(tensor.shape.size()));
  for (const int64_t dim : tensor.shape) hasher.UpdateInt(dim);
  hasher.UpdateField(tensor.data);
}

std::string Joined(const std::set<std::string_view>& formats) {
  std::string text;
  for (const std::string_view format : formats) StrAppend(&text, text.empty() ? "" : "+", format);
  return text;
}

}  // namespace

absl::StatusOr<LayerMatch> CompareLayer(const v1::Model& model, int32_t layer, absl::Span<const OwnTensor> tensors) {
  const auto digest = std::ranges::find(model.layer_digests(), layer, &v1::LayerDigest::layer);
  if (digest == model.layer_digests().end()) {
    return absl::NotFoundError(StrCat(model.name(), " has no digest of layer ", layer,
                                      "; expected one of Model.layer_digests, which servers of version 0.1.0 lack"));
  }
  Hasher hasher;
  hasher.UpdateInt(layer);
  std::set<std::string_view> matrices, others;
  for (const std::string& name : model.digest_tensors()) {
    GDN_ASSIGN_OR_RETURN(const OwnTensor* const tensor, FindTensor(tensors, name));
    (tensor->shape.size() == 2 ? matrices : others).insert(tensor->format);
    AddTensor(hasher, name, *tensor);
    if (tensor->format != "F8_E4M3") continue;
    GDN_ASSIGN_OR_RETURN(const OwnTensor* const scales, FindTensor(tensors, StrCat(name, kScales)));
    AddTensor(hasher, kScales, *scales);
  }
  if (digest->has_adapter() || Joined(matrices) != digest->format() || Joined(others) != digest->vector_format()) {
    return LayerMatch::kNotComparable;
  }
  return hasher.Finish().ToHex() == digest->xxh3_128() ? LayerMatch::kEqual : LayerMatch::kDifferent;
}

}  // namespace gdn
