// Drafts that are trees, through a whole layer and its parts: each token has the bits of a chain of its ancestors and
// itself, and an accepted path leaves what plain decodes of it leave.

#include <sys/mman.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/layer/accept_draft.h"
#include "kernels/layer/tree_rounds.h"
#include "tests/kernels/tree_sessions.h"
#include "tests/support/compare.h"
#include "tests/support/refusal.h"
#include "tests/support/test_backend.h"

namespace gdn::layer_tree_test {
namespace {

using Session = TreeSessions::Session;

constexpr int32_t kMaxDraft = 24;

using LayerTree = BackendTest;
GDN_ON_EVERY_BACKEND(LayerTree);

// Slots of a test: where the session is before its draft, with the tree's draft, and two to compare.
enum Slot : int32_t { kBefore, kDrafted, kPlain, kAccepted, kSlots };

// A session whose base holds some tokens and whose log `log_length`.
Session Begin(TreeSessions& sessions, int32_t log_length) {
  Session session{.slot = kBefore};
  for (const int32_t tokens : {8, kLogCapacity - 8, log_length / 2, log_length - log_length / 2}) {
    sessions.Decode(session, sessions.Make(tokens), /*draft=*/false);
  }
  EXPECT_EQ(session.log_length, log_length);
  return session;
}

std::vector<int32_t> Pick(const std::vector<int32_t>& tokens, const std::vector<int32_t>& path) {
  std::vector<int32_t> picked;
  for (const int32_t token : path) picked.push_back(tokens[static_cast<size_t>(token)]);
  return picked;
}

// `output` is the tree's; of every token's path a chain is drafted, and one decoded plainly and accepted.
void ExpectChains(TreeSessions& sessions, const Session& before, const std::vector<int32_t>& tokens,
                  const std::vector<int32_t>& parents, const std::vector<char>& output) {
  const std::vector<int32_t> next = sessions.Make(1);
  for (int32_t token = -1; token < static_cast<int32_t>(tokens.size()); ++token) {
    SCOPED_TRACE("the path to " + std::to_string(token));
    const std::vector<int32_t> path = PathTo(parents, token);
    Session plain = sessions.Copy(before, kPlain);
    const std::vector<char> chain = sessions.Decode(plain, Pick(tokens, path), /*draft=*/true);
    for (size_t i = 0; i < path.size(); ++i) {
      ASSERT_EQ(sessions.Row(output, static_cast<size_t>(path[i])), sessions.Row(chain, i)) << "token " << path[i];
    }
    sessions.Decode(plain, Pick(tokens, path), /*draft=*/false);
    Session accepted = sessions.Copy({.slot = kDrafted,
                                      .base_slot = before.base_slot,
                                      .token_count = before.token_count,
                                      .log_length = before.log_length},
                                     kAccepted);
    sessions.Accept(accepted, path);
    ASSERT_EQ(accepted.log_length, plain.log_length);
    ASSERT_TRUE(BitEqual(sessions.Read(accepted), sessions.Read(plain)));
    EXPECT_EQ(sessions.Decode(accepted, next, /*draft=*/false), sessions.Decode(plain, next, /*draft=*/false));
    EXPECT_TRUE(BitEqual(sessions.Read(accepted), sessions.Read(plain)));
  }
}

void ExpectTreesAreChains(Backend& backend, const TreeSetup& setup, const std::vector<int32_t>& log_lengths,
                          const std::vector<int32_t>& sizes) {
  SCOPED_TRACE(setup.ToString());
  Random random(5);
  for (const int32_t log_length : log_lengths) {
    TreeSessions sessions(backend, setup, kSlots);
    const Session before = Begin(sessions, log_length);
    for (const int32_t size : sizes) {
      const std::vector<int32_t> parents = RandomParents(size, random);
      SCOPED_TRACE("a log of " + std::to_string(log_length) + ", parents " + testing::PrintToString(parents));
      const std::vector<int32_t> tokens = sessions.Make(size);
      const std::vector<float> untouched = sessions.ReadAll(kBefore);
      Session drafted = sessions.Copy(before, kDrafted);
      const std::vector<char> output = sessions.Decode(drafted, tokens, /*draft=*/true, parents);
      ExpectChains(sessions, before, tokens, parents, output);
      EXPECT_TRUE(BitEqual(sessions.ReadAll(kBefore), untouched));
      if (testing::Test::HasFailure()) return;
    }
  }
}

std::vector<int32_t> UpTo(int32_t last) {
  std::vector<int32_t> values;
  for (int32_t i = 0; i <= last; ++i) values.push_back(i);
  return values;
}

TEST_P(LayerTree, TokensHaveTheBitsOfTheirChainsFromEveryLogLength) {
  ExpectTreesAreChains(backend(), {}, UpTo(kLogCapacity - 1), {5});
  ExpectTreesAreChains(backend(), {}, {0, 4, 13}, {kMaxDraft});
}

TEST_P(LayerTree, TokensHaveTheBitsOfTheirChainsForEveryKindAndDtype) {
  const LayerDims wide = {
      .key_heads = 2, .value_heads = 4, .key_dim = 16, .value_dim = 24, .conv_width = 4, .hidden_size = 20};
  const LayerDims narrow = {
      .key_heads = 1, .value_heads = 3, .key_dim = 33, .value_dim = 7, .conv_width = 2, .hidden_size = 12};
  const std::vector<int32_t> lengths = {9, 15};
  const std::vector<int32_t> sizes = {11};
  for (const InputKind kind : {InputKind::kHiddenStates, InputKind::kProjected, InputKind::kDeltaRule}) {
    ExpectTreesAreChains(backend(), {.kind = kind, .dims = wide}, lengths, sizes);
    ExpectTreesAreChains(backend(), {.kind = kind, .dims = narrow, .layout = ProjectionLayout::kFlat}, lengths, sizes);
    ExpectTreesAreChains(backend(), {.kind = kind, .inputs = DType::kBF16}, lengths, sizes);
    ExpectTreesAreChains(backend(), {.kind = kind, .base = DType::kBF16}, lengths, sizes);
  }
}

TEST_P(LayerTree, RootsAloneAndChainsWithParentsAreTreesToo) {
  TreeSessions sessions(backend(), {}, kSlots);
  const Session before = Begin(sessions, 14);
  for (const std::vector<int32_t>& parents :
       {std::vector<int32_t>{-1, -1, -1}, {-1}, {-1, 0, 1, 2}, {-1, -1, 1, 0, 2, 3}}) {
    const std::vector<int32_t> tokens = sessions.Make(static_cast<int32_t>(parents.size()));
    Session drafted = sessions.Copy(before, kDrafted);
    const std::vector<char> output = sessions.Decode(drafted, tokens, /*draft=*/true, parents);
    ExpectChains(sessions, before, tokens, parents, output);
  }
}

TEST_P(LayerTree, AFreshSessionAndAForkOverASharedBaseTakeTrees) {
  TreeSessions sessions(backend(), {}, kSlots + 1);
  const std::vector<int32_t> parents = {-1, 0, 0, 1, -1, 4, 2, 6, 7, 8};
  const std::vector<int32_t> tokens = sessions.Make(static_cast<int32_t>(parents.size()));
  const Session fresh{.slot = kBefore};
  Session drafted = sessions.Copy(fresh, kDrafted);
  ExpectChains(sessions, fresh, tokens, parents, sessions.Decode(drafted, tokens, /*draft=*/true, parents));

  Session forked = sessions.Copy(Begin(sessions, 12), kSlots);
  forked.base_slot = kSlots;  // its base stays there
  forked = sessions.Copy(forked, kBefore);
  const StatePoolView& pool = sessions.pool();
  std::fill_n(pool.slot(kBefore), pool.layout.log_k_offset(), 1e30f);  // nobody looks at this one
  drafted = sessions.Copy(forked, kDrafted);
  ExpectChains(sessions, forked, tokens, parents, sessions.Decode(drafted, tokens, /*draft=*/true, parents));
}

TEST_P(LayerTree, TreesThenChainsThenTreesGoOnAsIfOnlyWhatWasAcceptedHadBeen) {
  for (const InputKind kind : {InputKind::kHiddenStates, InputKind::kDeltaRule}) {
    TreeSessions sessions(backend(), {.kind = kind}, /*slots=*/2);
    Session speculating{.slot = 0}, plain{.slot = 1};
    Random random(17);
    for (int round = 0; round < 24; ++round) {
      SCOPED_TRACE(round);
      const int32_t size = random.NextInt(1, kMaxDraft);
      const std::vector<int32_t> tokens = sessions.Make(size);
      const bool tree = round % 2 == 0;
      std::vector<int32_t> parents = UpTo(size - 1);
      for (int32_t& parent : parents) --parent;
      if (tree) parents = RandomParents(size, random);
      sessions.Decode(speculating, tokens, /*draft=*/true, tree ? parents : std::vector<int32_t>());
      const std::vector<int32_t> path = PathTo(parents, random.NextInt(-1, size - 1));
      sessions.Accept(speculating, path);
      sessions.Decode(plain, Pick(tokens, path), /*draft=*/false);
      ASSERT_TRUE(BitEqual(sessions.Read(speculating), sessions.Read(plain)));
      const std::vector<int32_t> next = sessions.Make(random.NextInt(1, 3));
      ASSERT_EQ(sessions.Decode(speculating, next, /*draft=*/false), sessions.Decode(plain, next, /*draft=*/false));
    }
    EXPECT_GT(plain.token_count, 5 * kLogCapacity);
  }
}

TEST_P(LayerTree, InABatchOfTreesChainsAndPaddingEachHasItsOwnBits) {
  constexpr int32_t kSessions = 5;
  for (const InputKind kind : {InputKind::kHiddenStates, InputKind::kProjected, InputKind::kDeltaRule}) {
    TreeSessions sessions(backend(), {.kind = kind}, 2 * kSessions);
    const std::vector<int32_t> lengths = {3, 15, 0, 9, 12};
    const std::vector<std::vector<int32_t>> parents = {
        {-1, 0, 0, 2, 2, 1}, {}, {-1, -1, 0}, {}, {-1, 0, 1, 1, 3, 4, 2}};
    const std::vector<int32_t> sizes = {6, 4, 3, 0, 7};
    std::vector<Session> together(kSessions), alone(kSessions);
    std::vector<TreeSessions::Call> batch;
    for (int32_t i = 0; i < kSessions; ++i) {
      const auto at = static_cast<size_t>(i);
      together[at].slot = i;
      sessions.Decode(together[at], sessions.Make(kLogCapacity), /*draft=*/false);
      sessions.Decode(together[at], sessions.Make(lengths[at]), /*draft=*/false);
      alone[at] = sessions.Copy(together[at], kSessions + i);
      batch.push_back({.session = &together[at], .tokens = sessions.Make(sizes[at]), .parents = parents[at]});
    }
    batch.insert(batch.begin() + 2, {.session = nullptr, .tokens = sessions.Make(2)});
    const std::vector<char> output = sessions.Decode(batch, /*draft=*/true);
    size_t row = 0;
    for (const TreeSessions::Call& call : batch) {
      std::vector<char> expected(call.tokens.size() * sessions.row_bytes(), 0);
      if (call.session != nullptr) {
        const auto i = static_cast<size_t>(call.session->slot);
        expected = sessions.Decode(alone[i], call.tokens, /*draft=*/true, call.parents);
        EXPECT_TRUE(BitEqual(sessions.ReadAll(together[i].slot), sessions.ReadAll(alone[i].slot))) << i;
      }
      for (size_t t = 0; t < call.tokens.size(); ++t, ++row) {
        EXPECT_EQ(sessions.Row(output, row), sessions.Row(expected, t)) << "row " << row;
      }
    }
  }
}

// A spine whose every token has a leaf beside the next: as many paths as half the tokens.
std::vector<int32_t> Comb(int32_t tokens) {
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < tokens; ++i) parents.push_back(i % 2 == 0 ? i - 2 : i - 1);
  parents[0] = -1;
  return parents;
}

TEST_P(LayerTree, MoreRowsThanARoundTakesRunInSeveral) {
  const TreeSetup setup{.kind = InputKind::kDeltaRule, .dims = OperatorDims(1, 1, 4, 3), .max_draft = kMaxDraftLimit};
  const std::vector<int32_t> parents = Comb(kMaxDraftLimit);  // of 592 rows
  TreeSessions sessions(backend(), setup, kSlots + 2);
  const Session before = Begin(sessions, 7);
  const std::vector<int32_t> tokens = sessions.Make(kMaxDraftLimit);
  std::vector<Session> drafted;
  std::vector<TreeSessions::Call> calls;
  for (const int32_t slot : {int32_t{kDrafted}, int32_t{kSlots}, int32_t{kSlots} + 1}) {
    drafted.push_back(sessions.Copy(before, slot));
  }
  for (Session& session : drafted) calls.push_back({.session = &session, .tokens = tokens, .parents = parents});
  std::vector<char> output = sessions.Decode(calls, /*draft=*/true);
  const auto one = static_cast<std::ptrdiff_t>(output.size() / 3);
  EXPECT_TRUE(std::equal(output.begin(), output.begin() + one, output.begin() + one));
  EXPECT_TRUE(std::equal(output.begin(), output.begin() + one, output.begin() + 2 * one));
  for (const int32_t slot : {int32_t{kSlots}, int32_t{kSlots} + 1}) {
    EXPECT_TRUE(BitEqual(sessions.ReadAll(slot), sessions.ReadAll(kDrafted)));
  }
  output.resize(static_cast<size_t>(one));
  ExpectChains(sessions, before, tokens, parents, output);
}

TEST_P(LayerTree, MorePathsThanTemporarySlotsRunInSeveralRounds) {
  if (!on_cpu()) GTEST_SKIP() << "slots of this size take the executor minutes";
  const TreeSetup setup{.kind = InputKind::kDeltaRule, .dims = OperatorDims(4, 16, 512, 512), .max_draft = 12};
  const std::vector<int32_t> parents = {-1, 0, 0, 0, 1, 1, 2, 3, 3, -1, 9};
  TreeSessions sessions(backend(), setup, kSlots);
  ASSERT_LT(kTreeSlotBytes / sessions.pool().layout.slot_bytes(), 6) << "the tree has six leaves";
  const Session before = Begin(sessions, 13);
  const std::vector<int32_t> tokens = sessions.Make(static_cast<int32_t>(parents.size()));
  Session drafted = sessions.Copy(before, kDrafted);
  ExpectChains(sessions, before, tokens, parents, sessions.Decode(drafted, tokens, /*draft=*/true, parents));
}

// Slots too far from what the backend allocates for one numbering of both.
TEST_P(LayerTree, APoolOutOfReachHasItsBasesCopied) {
  constexpr size_t kBytes = size_t{1} << 20;
#ifdef __SANITIZE_THREAD__
  constexpr uintptr_t kFar = uintptr_t{1} << 38;  // the sanitizer ends a program that maps anything between its ranges
#else
  constexpr uintptr_t kFar = uintptr_t{1} << 44;
#endif
  void* const far = mmap(reinterpret_cast<void*>(kFar), kBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (far == MAP_FAILED) GTEST_SKIP() << "somebody else has that place";
  {
    TreeSetup setup{.kind = InputKind::kProjected};
    setup.memory = static_cast<float*>(far);
    const StateLayout layout = *StateLayout::Make(setup.dims, setup.max_draft);
    ASSERT_LE(static_cast<size_t>(layout.slot_bytes()) * (kSlots + 1), kBytes);
    TreeSessions sessions(backend(), setup, kSlots + 1);
    const Session before = Begin(sessions, 11);
    const std::vector<int32_t> parents = {-1, 0, 1, 1, 0, 4, 5, 6, -1};
    const std::vector<int32_t> tokens = sessions.Make(static_cast<int32_t>(parents.size()));
    Session drafted = sessions.Copy(before, kDrafted);
    Session chain = sessions.Copy(before, kSlots);
    const std::vector<int32_t> chained = sessions.Make(3);
    std::vector<char> output = sessions.Decode(
        {{.session = &drafted, .tokens = tokens, .parents = parents}, {.session = &chain, .tokens = chained}},
        /*draft=*/true);
    const std::vector<char> beside(output.begin() + static_cast<std::ptrdiff_t>(tokens.size() * sessions.row_bytes()),
                                   output.end());
    output.resize(tokens.size() * sessions.row_bytes());
    ExpectChains(sessions, before, tokens, parents, output);
    Session plain = sessions.Copy(before, kPlain);
    EXPECT_EQ(beside, sessions.Decode(plain, chained, /*draft=*/true));
    sessions.Accept(chain, {0, 1, 2});
    sessions.Accept(plain, {0, 1, 2});
    EXPECT_TRUE(BitEqual(sessions.Read(chain), sessions.Read(plain)));
  }
  munmap(far, kBytes);
}

// A token with a wrong parent (a sibling, or none) has other bits, so the tests above would notice it.
TEST_P(LayerTree, AWrongAncestorChangesTheBits) {
  for (const InputKind kind : {InputKind::kHiddenStates, InputKind::kProjected, InputKind::kDeltaRule}) {
    TreeSessions sessions(backend(), {.kind = kind}, kSlots);
    const Session before = Begin(sessions, 6);
    const std::vector<int32_t> tokens = sessions.Make(5);
    const std::vector<int32_t> parents = {-1, 0, 0, 2, 2};
    Session drafted = sessions.Copy(before, kDrafted);
    const std::vector<char> output = sessions.Decode(drafted, tokens, /*draft=*/true, parents);
    for (const int32_t wrong : {-1, 1, 3}) {
      std::vector<int32_t> others = parents;
      others[4] = wrong;
      drafted = sessions.Copy(before, kDrafted);
      const std::vector<char> found = sessions.Decode(drafted, tokens, /*draft=*/true, others);
      for (const size_t token : {0, 1, 2, 3}) EXPECT_EQ(sessions.Row(found, token), sessions.Row(output, token));
      EXPECT_NE(sessions.Row(found, 4), sessions.Row(output, 4)) << "with " << wrong << " for its parent";
      // An acceptance that moves nothing would leave another state, too.
      Session moved = sessions.Copy(before, kPlain);
      moved = sessions.Copy({.slot = kDrafted, .token_count = before.token_count, .log_length = before.log_length},
                            kAccepted);
      Session unmoved = sessions.Copy(moved, kPlain);
      sessions.Accept(moved, {0, 2});
      sessions.Accept(unmoved, {0, 1});
      EXPECT_FALSE(BitEqual(sessions.Read(moved), sessions.Read(unmoved)));
    }
  }
}

TEST_P(LayerTree, BadParentsAndPathsAreRefusedBeforeAnythingIsTouched) {
  LayerProblem problem(
      {.dims = {.key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 12}},
      /*slots=*/2);
  GdnLayerRunner runner(backend());
  const std::vector<Rows> rows = {{.slot = 0, .x = problem.Inputs(2)}, {.slot = 1, .x = problem.Inputs(3)}};
  PackedRows packed(rows, problem.weights(), problem.pool().view());
  std::vector<int32_t> parents = {-1, -1, -1, 0, 2};
  packed.step.draft_parents = parents.data();
  EXPECT_THAT(runner.Decode(packed.step, packed.log_lengths.data()), IsInvalid("no draft"));
  EXPECT_THAT(runner.Prefill(packed.step), IsInvalid("draft_parents"));
  packed.step.draft = true;
  EXPECT_THAT(runner.Decode(packed.step, packed.log_lengths.data()), IsInvalid("draft_parents[4] is 2"));
  parents[4] = -2;
  EXPECT_THAT(runner.Decode(packed.step, packed.log_lengths.data()), IsInvalid("draft_parents[4] is -2"));
  parents = {0, -1, -1, 0, 1};
  EXPECT_THAT(runner.Decode(packed.step, packed.log_lengths.data()), IsInvalid("draft_parents[0] is 0"));
  EXPECT_THAT(packed.y, testing::Each(-7.0f));
  EXPECT_THAT(problem.pool().slot(0), testing::Each(0.0f));

  const StatePoolView& pool = problem.pool().view();
  const auto move = [&](int32_t slot, int32_t log_length, const std::vector<int32_t>& path) {
    return MoveDraftPaths(backend(), pool, {DraftPath{.slot = slot, .log_length = log_length, .path = path}});
  };
  EXPECT_THAT(move(2, 0, {0}), IsInvalid("index is 2"));
  EXPECT_THAT(move(0, 16, {0}), IsInvalid("log_length is 16"));
  EXPECT_THAT(move(0, 0, {1, 1}), IsInvalid("path[1] is 1"));
  EXPECT_THAT(move(0, 0, {8}), IsInvalid("path[0] is 8"));
  EXPECT_EQ(move(0, 0, {}), absl::OkStatus());
}

}  // namespace
}  // namespace gdn::layer_tree_test
