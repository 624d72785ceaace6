#include "base/draft_tree.h"

#include <algorithm>
#include <string>

#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

bool IsDraftChain(absl::Span<const int32_t> parents) {
  for (size_t i = 0; i < parents.size(); ++i) {
    if (parents[i] != static_cast<int32_t>(i) - 1) return false;
  }
  return true;
}

absl::Status CheckDraftParents(absl::Span<const int32_t> parents, std::string_view field, int64_t first) {
  for (size_t i = 0; i < parents.size(); ++i) {
    const auto token = static_cast<int32_t>(i);
    if (parents[i] >= kDraftRoot && parents[i] < token) continue;
    const int64_t index = first + token;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                     StrCat(field, "[", index, "] is ", parents[i], ", the parent of token ", token,
                            "; expected an earlier token, or -1 for one that follows what the session has taken"),
                     {{"field", std::string(field)},
                      {"index", StrCat(index)},
                      {"found", StrCat(parents[i])},
                      {"expected", StrCat("-1 .. ", token - 1)}});
  }
  return absl::OkStatus();
}

absl::Status CheckDraftPath(absl::Span<const int32_t> parents, int32_t draft_length, absl::Span<const int32_t> path) {
  int32_t before = kDraftRoot;
  for (size_t i = 0; i < path.size(); ++i) {
    const auto refuse = [&](std::string_view why, const std::string& expected) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                       StrCat("path[", i, "] is ", path[i], ", ", why, "; expected ", expected),
                       {{"field", "path"}, {"index", StrCat(i)}, {"found", StrCat(path[i])}, {"expected", expected}});
    };
    if (path[i] < 0 || path[i] >= draft_length) {
      return refuse(StrCat("and the draft has ", draft_length, " tokens"), StrCat("0 .. ", draft_length - 1));
    }
    const int32_t parent = parents.empty() ? path[i] - 1 : parents[static_cast<size_t>(path[i])];
    if (parent != before) {
      const std::string expected = before == kDraftRoot ? "a token whose parent is -1" : StrCat("a child of ", before);
      return refuse(StrCat("whose parent is ", parent), expected);
    }
    before = path[i];
  }
  return absl::OkStatus();
}

DraftPaths DraftPathsOf(absl::Span<const int32_t> parents) {
  std::vector<bool> is_leaf(parents.size(), true);
  for (const int32_t parent : parents) {
    if (parent != kDraftRoot) is_leaf[static_cast<size_t>(parent)] = false;
  }
  DraftPaths made;
  made.places.resize(parents.size());
  std::vector<bool> placed(parents.size(), false);
  for (size_t leaf = 0; leaf < parents.size(); ++leaf) {
    if (!is_leaf[leaf]) continue;
    std::vector<int32_t> path;
    for (auto token = static_cast<int32_t>(leaf); token != kDraftRoot; token = parents[static_cast<size_t>(token)]) {
      path.push_back(token);
    }
    std::reverse(path.begin(), path.end());
    for (size_t depth = 0; depth < path.size(); ++depth) {
      const auto token = static_cast<size_t>(path[depth]);
      if (placed[token]) continue;
      placed[token] = true;
      made.places[token] = {.path = static_cast<int32_t>(made.paths.size()), .depth = static_cast<int32_t>(depth)};
    }
    made.paths.push_back(std::move(path));
  }
  return made;
}

}  // namespace gdn
