// absl::StrCat and absl::StrAppend that also take std::string_view.
//
// Distributions build Abseil with its own string_view, to which std::string_view does not convert.
// Thread safety: free functions. Ownership: the result owns its bytes.
//
//   std::string_view name = DTypeName(dtype);
//   std::string message = StrCat("dtype ", name, " has ", DTypeSize(dtype), " bytes");
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace gdn {

// Converts to absl::string_view, which may or may not be the same type as std::string_view.
inline absl::string_view AbslView(std::string_view text) { return absl::string_view(text.data(), text.size()); }

namespace string_cat_internal {
template <typename T>
decltype(auto) Piece(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return AbslView(value);
  } else {
    return (value);
  }
}
}  // namespace string_cat_internal

template <typename... T>
std::string StrCat(const T&... pieces) {
  return absl::StrCat(string_cat_internal::Piece(pieces)...);
}

template <typename... T>
void StrAppend(std::string* destination, const T&... pieces) {
  absl::StrAppend(destination, string_cat_internal::Piece(pieces)...);
}

}  // namespace gdn
