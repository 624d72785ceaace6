#include "state_store/state_file/head_parts.h"

#include "state_store/state_file/metadata.h"

namespace gdn::state_file {
namespace {

// Describes [heads, each] elements: `total` heads, of which `count` are taken, from `first` on.
struct Section {
  int64_t total;
  int64_t first;
  int64_t count;
  int64_t each;
};

}  // namespace

std::vector<HeadRun> HeadRuns(std::string_view part, const LayerDims& dims, const HeadSlice& heads, int64_t elements) {
  const int64_t group = dims.group();
  const auto keys = [&](int64_t each) {
    return Section{.total = dims.key_heads, .first = heads.first / group, .count = heads.count / group, .each = each};
  };
  const auto values = [&](int64_t each) {
    return Section{.total = dims.value_heads, .first = heads.first, .count = heads.count, .each = each};
  };
  std::vector<Section> sections;
  if (part == kConvState || part == kDraftConvState) {
    const int64_t columns = elements / dims.conv_channels();
    sections = {keys(dims.key_dim * columns), keys(dims.key_dim * columns), values(dims.value_dim * columns)};
  } else if (part == kLogK) {
    sections = {keys(dims.key_dim)};
  } else if (part == kLogU) {
    sections = {values(dims.value_dim)};
  } else if (part == kLogG) {
    sections = {values(dims.decay_dim())};
  } else {
    sections = {values(int64_t{dims.key_dim} * dims.value_dim)};
  }
  std::vector<HeadRun> runs;
  int64_t in_part = 0;
  for (int64_t in_whole = 0; in_whole < elements;) {
    for (const Section& section : sections) {
      const int64_t count = section.count * section.each;
      runs.push_back({.in_whole = in_whole + section.first * section.each, .in_part = in_part, .count = count});
      in_whole += section.total * section.each;
      in_part += count;
    }
  }
  return runs;
}

}  // namespace gdn::state_file
