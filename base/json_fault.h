// Says what is wrong with a text that is not JSON, and where.
//
// Thread safety: free functions. Ownership: plain values.
//
//   if (json.is_discarded()) return InvalidArgumentError(StrCat("'", path, "' is not JSON: ", JsonFault(text)));
#pragma once

#include <string>
#include <string_view>

namespace gdn {

// "line 3, column 5: a comment, which JSON does not have; remove it"; "it is empty"; "it is UTF-16 text, expected
// UTF-8"; "it is a Git LFS pointer, ..". "" if the text is JSON.
std::string JsonFault(std::string_view text);

// The text with NaN, Infinity and -Infinity, which Python's json writes for numbers, in quotation marks where they are
// values. A field with such a value is then a string: no error for those who do not read it, and one with its text for
// those who do.
std::string QuoteNonFinite(std::string_view text);

// Whether it is what Git leaves in place of a large file that was not fetched; kFetchLfsFile says what to do then.
bool IsLfsPointer(std::string_view bytes);
inline constexpr std::string_view kFetchLfsFile =
    "it is a Git LFS pointer and not the file itself; run 'git lfs pull' in its folder";

}  // namespace gdn
