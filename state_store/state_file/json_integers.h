// Short arrays of integers in a state file's metadata: the tree of a draft, a path that was accepted. For this folder
// alone.
//
// Thread safety: a pure function.
//
//   if (!ReadIntegers(json, "draft_parents", /*least=*/-1, parents)) return InvalidEntry(..);
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/slot_codec.h"
#include "nlohmann/json.hpp"

namespace gdn::state_file {

// False where the field is there and is not an array of as few integers as a draft has tokens, each in
// [least, kMaxDraftLimit).
inline bool ReadIntegers(const nlohmann::json& json, const char* field, int32_t least, std::vector<int32_t>& values) {
  const auto it = json.find(field);
  if (it == json.end()) return true;
  if (!it->is_array() || it->size() > static_cast<size_t>(kMaxDraftLimit)) return false;
  for (const nlohmann::json& value : *it) {
    if (!value.is_number_integer() || value < least || value >= kMaxDraftLimit) return false;
    values.push_back(value.get<int32_t>());
  }
  return true;
}

}  // namespace gdn::state_file
