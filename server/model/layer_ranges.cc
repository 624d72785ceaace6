#include "server/model/layer_ranges.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "base/bounded_text.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr int32_t kMostLayer = 4095;  // a config has at most 4096 layers

absl::Status WrongLayers(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, message, {{"field", "layers"}});
}

// SimpleAtoi alone would also take spaces and signs.
std::optional<int32_t> ParseLayerNumber(std::string_view text) {
  int32_t layer = 0;
  const bool digits = !text.empty() && std::ranges::all_of(text, [](char c) { return absl::ascii_isdigit(c); });
  if (!digits || !absl::SimpleAtoi(AbslView(text), &layer) || layer > kMostLayer) return std::nullopt;
  return layer;
}

std::optional<LayerRange> ParseLayerRange(std::string_view text) {
  const size_t dash = text.find('-');
  const std::optional<int32_t> first = ParseLayerNumber(text.substr(0, dash));
  const std::optional<int32_t> last = dash == std::string_view::npos ? first : ParseLayerNumber(text.substr(dash + 1));
  if (!first.has_value() || !last.has_value() || *first > *last) return std::nullopt;
  return LayerRange{.first = *first, .last = *last};
}

}  // namespace

absl::StatusOr<LayerRanges> ParseLayerRanges(std::string_view text) {
  LayerRanges ranges;
  for (std::string_view rest = text;;) {
    const size_t comma = rest.find(',');
    const std::optional<LayerRange> range = ParseLayerRange(rest.substr(0, comma));
    if (!range.has_value() || (!ranges.empty() && range->first <= ranges.back().last)) {
      return WrongLayers(StrCat("layers are '", BoundedText(text, kMostListBytes),
                                "', expected ascending ranges of 0 .. ", kMostLayer, " such as 0-23,30"));
    }
    ranges.push_back(*range);
    if (comma == std::string_view::npos) return ranges;
    rest.remove_prefix(comma + 1);
  }
}

std::string LayerRangesToString(const LayerRanges& ranges) {
  std::string text;
  for (const auto& [first, last] : ranges) {
    StrAppend(&text, text.empty() ? "" : ",", first);
    if (last > first) StrAppend(&text, "-", last);
  }
  return text;
}

absl::StatusOr<std::vector<int32_t>> GdnLayersIn(const LayerRanges& ranges, const ModelConfig& config) {
  if (ranges.empty()) return config.gdn_layers;
  std::vector<int32_t> layers;
  for (const LayerRange& range : ranges) {
    const std::string text = LayerRangesToString({range});
    if (range.last >= config.num_layers) {
      return WrongLayers(StrCat("layers ", text, " are not all in the model, which has the layers 0 to ",
                                config.num_layers - 1, "; choose --layers among these"));
    }
    const auto first = std::ranges::lower_bound(config.gdn_layers, range.first);
    const auto end = std::ranges::upper_bound(config.gdn_layers, range.last);
    if (first == end) {
      return WrongLayers(StrCat("layers ", text, " have no Gated DeltaNet layer; the model's are ",
                                NumberRanges(config.gdn_layers, kMostListBytes),
                                ": choose --layers with at least one of these in each range"));
    }
    std::copy(first, end, std::back_inserter(layers));
  }
  return layers;
}

}  // namespace gdn
