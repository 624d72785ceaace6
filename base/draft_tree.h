// A draft whose tokens are a tree: which token each of them follows, and the ways from the tree's roots to its leaves.
//
// Token i of a draft follows token parents[i], an index below i, or -1: what the session had taken before. A chain is
// the tree where each token follows the one before; no parents at all mean a chain too. A path is the indices of tokens
// of which each follows the one before it, and the first what the session had taken.
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

// Of the token before the first.
inline constexpr int32_t kDraftRoot = -1;

// Whether every token follows the one before it. Without parents: yes.
bool IsDraftChain(absl::Span<const int32_t> parents);

// INVALID_ARGUMENT (VALUE_OUT_OF_RANGE: field, index, found, expected) where a parent is no earlier token and not -1.
// The parents are the entries of `field` from `first` on.
absl::Status CheckDraftParents(absl::Span<const int32_t> parents, std::string_view field, int64_t first = 0);

// INVALID_ARGUMENT (VALUE_OUT_OF_RANGE: field, index, found, expected) where `path` is no path of the draft.
absl::Status CheckDraftPath(absl::Span<const int32_t> parents, int32_t draft_length, absl::Span<const int32_t> path);

// The ways from roots to leaves, by the leaves' indices; a token that several share is told by the first of them.
struct DraftPaths {
  struct Place {
    int32_t path = 0;
    int32_t depth = 0;  // in that path
  };
  std::vector<std::vector<int32_t>> paths;
  std::vector<Place> places;  // of each token
};
// Of parents that CheckDraftParents has passed.
DraftPaths DraftPathsOf(absl::Span<const int32_t> parents);

}  // namespace gdn
