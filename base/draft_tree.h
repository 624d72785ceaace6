// Drafts whose tokens form a tree: parent of each token, and the paths from roots to leaves.
//
// Draft token i follows token parents[i] < i, or, if parents[i] is -1, the session's last accepted token. In a chain
// each token follows the one before it; an empty list of parents means a chain too. A path is a list of token indices
// from a root: the first has parent -1, and each later one is a child of the one before it.
// Thread safety: pure functions. Ownership: none.
//
//   const int32_t parents[] = {-1, 0, 0, 1};  // two tokens after the first, one after the second
//   GDN_RETURN_IF_ERROR(CheckDraftParents(parents, "draft_parents"));
//   GDN_RETURN_IF_ERROR(CheckDraftPath(parents, /*draft_length=*/4, {0, 1, 3}));
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace gdn {

// Parent of a token that follows the session's last accepted token.
inline constexpr int32_t kDraftRoot = -1;

// True if parents[i] is i - 1 for every token, so that each follows the one before it; also if `parents` is empty.
bool IsDraftChain(absl::Span<const int32_t> parents);

// OK if each parent is -1 or the index of an earlier token of `parents`. Else INVALID_ARGUMENT (VALUE_OUT_OF_RANGE:
// field, index, found, expected). `field` names the request's field, and `first` is the index in it of parents[0]; both
// are only for the error.
absl::Status CheckDraftParents(absl::Span<const int32_t> parents, std::string_view field, int64_t first = 0);

// OK if `path` is a path of the draft, or empty: its first token has parent -1, and each later one is a child of the
// one before it. Else INVALID_ARGUMENT (VALUE_OUT_OF_RANGE: field, index, found, expected). `parents` is empty for a
// chain, else has `draft_length` elements and has passed CheckDraftParents.
absl::Status CheckDraftPath(absl::Span<const int32_t> parents, int32_t draft_length, absl::Span<const int32_t> path);

// All paths from a root to a leaf, in the order of the leaves' indices. A token that several paths share is in each of
// them; `places` has its place in the first.
struct DraftPaths {
  struct Place {
    int32_t path = 0;   // index in `paths`
    int32_t depth = 0;  // index of the token in that path
  };
  std::vector<std::vector<int32_t>> paths;
  std::vector<Place> places;  // parallel to the draft's tokens: the position of each token in `paths`
};
// Returns the tree's paths. `parents` must have passed CheckDraftParents, and a chain must be spelled out: an empty
// list gives no path.
DraftPaths DraftPathsOf(absl::Span<const int32_t> parents);

}  // namespace gdn
