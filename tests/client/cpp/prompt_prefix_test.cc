// Prompts cut into segments: where they are cut, and that the hashes are those that every client makes.
#include "client/cpp/prompt_prefix.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "absl/strings/escaping.h"

namespace gdn::prompt_prefix_test {
namespace {

std::vector<int64_t> TokensOf(const v1::PromptPrefix& prefix) {
  std::vector<int64_t> tokens;
  for (const v1::PrefixSegment& segment : prefix.segments()) tokens.push_back(segment.tokens());
  return tokens;
}

TEST(PromptPrefix, IsCutBeforeThePromptsLastToken) {
  const std::vector<int64_t> ids = {1, 2, 3, 4, 5};
  EXPECT_EQ(TokensOf(PromptPrefixOf(ids, 2)), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(TokensOf(PromptPrefixOf(ids, 4)), (std::vector<int64_t>{4}));
  EXPECT_EQ(TokensOf(PromptPrefixOf(ids, 1)), (std::vector<int64_t>{1, 1, 1, 1}));
  EXPECT_TRUE(PromptPrefixOf(ids, 5).segments().empty());
  EXPECT_TRUE(PromptPrefixOf({}, 1).segments().empty());
}

// client/python/tests/test_prefixes.py expects the same.
TEST(PromptPrefix, HashesAsOtherClientsDo) {
  const v1::PromptPrefix prefix = PromptPrefixOf({1, 2, -3, 4, 5}, 2, "c");
  ASSERT_EQ(prefix.segments_size(), 2);
  EXPECT_EQ(absl::BytesToHexString(prefix.segments(1).content_sha256()),
            "8ba8b6b93ca6c9adb9574e109415113eef6a425014587b891450bc3b4f3e3968");
  EXPECT_NE(prefix.segments(1).content_sha256(), PromptPrefixOf({1, 2, -3, 4, 5}, 2).segments(1).content_sha256());
}

TEST(PromptPrefix, FirstSegmentsEndAtTheTokenOrBefore) {
  v1::PromptPrefix prefix = PromptPrefixOf({1, 2, 3, 4, 5, 6, 7}, 3);
  prefix.set_input_kind(v1::INPUT_KIND_PROJECTED);
  EXPECT_EQ(TokensOf(FirstSegments(prefix, 6)), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(TokensOf(FirstSegments(prefix, 5)), (std::vector<int64_t>{3}));
  EXPECT_EQ(TokensOf(FirstSegments(prefix, 2)), (std::vector<int64_t>{}));
  EXPECT_EQ(TokensOf(FirstSegments(prefix, 100)), (std::vector<int64_t>{3, 3}));
  EXPECT_EQ(FirstSegments(prefix, 3).input_kind(), v1::INPUT_KIND_PROJECTED);
}

}  // namespace
}  // namespace gdn::prompt_prefix_test
