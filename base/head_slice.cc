#include "base/head_slice.h"

#include <array>
#include <optional>

#include "absl/strings/numbers.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr std::string_view kVersion = "gdn.heads.1";

absl::Status Invalid(std::string_view heads, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, StrCat("heads ", heads, " ", message),
                   {{"field", "heads"}});
}

// A decimal number in its only spelling.
std::optional<int32_t> Number(std::string_view text) {
  int32_t value = 0;
  if (!absl::SimpleAtoi(AbslView(text), &value) || value < 0 || StrCat(value) != text) return std::nullopt;
  return value;
}

}  // namespace

absl::StatusOr<HeadSlice> ParseHeadSlice(std::string_view text) {
  const size_t dash = text.find('-');
  const size_t slash = text.find('/');
  std::array<std::optional<int32_t>, 3> numbers;  // first, last, total
  if (dash < slash && slash != std::string_view::npos) {
    numbers = {Number(text.substr(0, dash)), Number(text.substr(dash + 1, slash - dash - 1)),
               Number(text.substr(slash + 1))};
  }
  for (const std::optional<int32_t>& number : numbers) {
    if (!number.has_value()) {
      return Invalid(StrCat("'", text, "'"), "are no slice; expected FIRST-LAST/TOTAL such as 0-15/32");
    }
  }
  const auto [first, last, total] = std::array{*numbers[0], *numbers[1], *numbers[2]};
  if (total > kMaxHeads || first > last || last >= total) {
    return Invalid(text,
                   StrCat("are not among the model's; expected FIRST <= LAST < TOTAL, and TOTAL at most ", kMaxHeads));
  }
  return HeadSlice{.first = first, .count = last - first + 1, .total = total};
}

std::string HeadSliceToString(const HeadSlice& heads) {
  if (heads.is_whole()) return "all";
  return StrCat(heads.first, "-", heads.end() - 1, "/", heads.total);
}

absl::Status CheckHeadSlice(const HeadSlice& heads, const LayerDims& dims) {
  if (heads == HeadSlice{}) return absl::OkStatus();
  const std::string text = StrCat(heads.first, "-", heads.end() - 1, "/", heads.total);
  if (heads.first < 0 || heads.count < 1 || heads.end() > heads.total) {
    return Invalid(text, "are not among the model's; expected FIRST <= LAST < TOTAL");
  }
  if (heads.total != dims.value_heads) {
    return Invalid(text, StrCat("are of ", heads.total, " value heads, and the model has ", dims.value_heads,
                                "; expected FIRST-LAST/", dims.value_heads));
  }
  const int32_t group = dims.group();
  if (heads.first % group != 0 || heads.end() % group != 0) {
    const int32_t cut = heads.first % group != 0 ? heads.first : heads.end();
    return Invalid(text, StrCat("cut the ", group, " value heads that read key head ", cut / group,
                                "; expected whole groups: a multiple of ", group, " to begin with, and as many heads"));
  }
  return absl::OkStatus();
}

LayerDims SliceDims(const LayerDims& dims, const HeadSlice& heads) {
  if (heads.is_whole()) return dims;
  LayerDims own = dims;
  own.value_heads = heads.count;
  own.key_heads = heads.count / dims.group();
  return own;
}

LayerDims WholeDims(const LayerDims& own, const HeadSlice& heads) {
  if (heads.is_whole()) return own;
  LayerDims dims = own;
  dims.value_heads = heads.total;
  dims.key_heads = heads.total / own.group();
  return dims;
}

std::string SliceFingerprint(const std::string& model, const HeadSlice& heads) {
  if (heads.is_whole()) return model;
  Hasher hasher;
  hasher.UpdateField(kVersion);
  hasher.UpdateField(model);
  for (const int32_t number : {heads.first, heads.count, heads.total}) hasher.UpdateInt(number);
  return hasher.Finish().ToHex();
}

}  // namespace gdn
