// Kept prefixes: which one is found, who may find it, and which go where there is no room.
#include "server/session/prefixes/prefix_index.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>

#include "server/session/prefixes/prefix_key.h"
#include "tests/server/session/session_test_support.h"
#include "tests/support/advanced_clock.h"

namespace gdn::prefix_index_test {
namespace {

constexpr int64_t kEntryBytes = 100;

PromptSegment Segment(int64_t tokens, unsigned char content) {
  PromptSegment segment{.tokens = tokens, .content = {}};
  segment.content.fill(content);
  return segment;
}

// A prompt of segments of 10 tokens each, by a letter each.
std::vector<PromptSegment> PromptOf(const std::string& letters) {
  std::vector<PromptSegment> segments;
  for (const char letter : letters) segments.push_back(Segment(10, static_cast<unsigned char>(letter)));
  return segments;
}

std::vector<PrefixKey> KeysOf(const std::vector<PromptSegment>& segments, const std::string& principal = "p") {
  const SessionSpec spec = ModelSessionSpec();
  const std::string numerics_id = "cpu-1";
  return PrefixKeys({.principal = principal,
                     .spec = spec,
                     .numerics_id = numerics_id,
                     .max_draft = 8,
                     .kind = InputKind::kHiddenStates},
                    segments);
}

TEST(PrefixKey, OfASegmentsEndFollowsFromAllSegmentsUpToThere) {
  const auto abc = KeysOf(PromptOf("abc")), abd = KeysOf(PromptOf("abd")), bbc = KeysOf(PromptOf("bbc"));
  ASSERT_EQ(abc.size(), 3u);
  EXPECT_EQ(abc[0], abd[0]);
  EXPECT_EQ(abc[1], abd[1]);
  EXPECT_NE(abc[2], abd[2]);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(abc[i], bbc[i]) << "the same segment behind another is another prefix";
}

TEST(PrefixKey, TellsEveryCutOfTheSameTokensApart) {
  std::set<PrefixKey> keys;
  for (const auto& segments :
       {std::vector{Segment(30, 'a')}, std::vector{Segment(10, 'a'), Segment(20, 'a')},
        std::vector{Segment(20, 'a'), Segment(10, 'a')}, std::vector{Segment(1, 'a'), Segment(29, 'a')},
        std::vector{Segment(0x0100, 'a')}, std::vector{Segment(0x010000, 'a')}}) {
    EXPECT_TRUE(keys.insert(KeysOf(segments).back()).second);
  }
}

TEST(PrefixKey, IsOfOnePrincipalModelNumericsDraftsAndKind) {
  SessionSpec spec = ModelSessionSpec(), finger = spec, dims = spec, layers = spec, name = spec;
  finger.fingerprint = "g";
  dims.dims.value_dim = 16;
  layers.layers = {1, 2};
  name.model = "mf";  // and the fingerprint "": the same text behind each other
  name.fingerprint = "";
  const std::string one = "cpu-1", two = "cpu-2", p = "p", pm = "pm";
  const auto segments = PromptOf("a");
  std::set<PrefixKey> keys;
  for (const PrefixScope& scope : {
           PrefixScope{p, spec, one, 8, InputKind::kHiddenStates},
           PrefixScope{pm, spec, one, 8, InputKind::kHiddenStates},
           PrefixScope{p, finger, one, 8, InputKind::kHiddenStates},
           PrefixScope{p, dims, one, 8, InputKind::kHiddenStates},
           PrefixScope{p, layers, one, 8, InputKind::kHiddenStates},
           PrefixScope{p, name, one, 8, InputKind::kHiddenStates},
           PrefixScope{p, spec, two, 8, InputKind::kHiddenStates},
           PrefixScope{p, spec, one, 7, InputKind::kHiddenStates},
           PrefixScope{p, spec, one, 8, InputKind::kProjected},
       }) {
    EXPECT_TRUE(keys.insert(PrefixKeys(scope, segments).back()).second);
  }
}

TEST(PrefillCalls, AreEqualForTheSameCutsAlone) {
  const PrefillCalls none;
  EXPECT_EQ(none.Then(10).Then(20), none.Then(10).Then(20));
  EXPECT_EQ(none.Then(10).Then(0), none.Then(10));
  EXPECT_FALSE(none.Then(30) == none.Then(10).Then(20));
  EXPECT_FALSE(none.Then(20).Then(10) == none.Then(10).Then(20));
  EXPECT_FALSE(PrefillCalls::Other() == PrefillCalls::Other());
  EXPECT_FALSE(PrefillCalls::Other().Then(10) == none.Then(10));
}

class PrefixIndexTest : public ::testing::Test {
 protected:
  static ByteLedgerOptions Ledger() { return {}; }
  ByteAccountPtr Account(const std::string& principal) { return ledger_.AccountOf(principal, "ipv4:10.0.0.1:1"); }
  PrefixIndex MakeIndex(int64_t entries, absl::Duration ttl = absl::InfiniteDuration()) {
    return PrefixIndex(ledger_, {.limit_bytes = entries * kEntryBytes, .ttl = ttl, .clock = clock_});
  }
  // Stores the prefix of the prompt. True if the index has it now.
  bool Keep(PrefixIndex& index, const std::string& letters, const std::string& principal = "p",
            SessionImagePtr image = std::make_shared<SessionImage>()) {
    const auto segments = PromptOf(letters);
    clock_.Advance(absl::Seconds(1));
    auto beginning = index.Begin(KeysOf(segments, principal).back(), principal, Account(principal), kEntryBytes);
    if (beginning.place.begun()) beginning.place.Keep(TokensOf(segments), std::move(image));
    return index.Find({KeysOf(segments, principal).back()}).image != nullptr;
  }
  // Tokens that a session with this prompt begins behind.
  static int64_t Known(const PrefixIndex& index, const std::string& letters, const std::string& principal = "p") {
    return index.Find(KeysOf(PromptOf(letters), principal)).tokens;
  }
  void Start(PrefixIndex& index, const std::string& letters, const std::string& principal = "p") {
    clock_.Advance(absl::Seconds(1));
    index.NoteStart(index.Find(KeysOf(PromptOf(letters), principal)));
  }

  AdvancedClock clock_;
  ByteLedger ledger_{Ledger()};
};

TEST_F(PrefixIndexTest, FindsTheLongestKnownPrefixWhateverIsKnownBetween) {
  PrefixIndex index = MakeIndex(10);
  EXPECT_EQ(Known(index, "abcdef"), 0);
  ASSERT_TRUE(Keep(index, "ab") && Keep(index, "abcd") && Keep(index, "abxy"));
  EXPECT_EQ(Known(index, "a"), 0);
  EXPECT_EQ(Known(index, "abc"), 20);
  EXPECT_EQ(Known(index, "abcd"), 40);
  EXPECT_EQ(Known(index, "abcdef"), 40);
  EXPECT_EQ(Known(index, "abxyz"), 40);
  EXPECT_EQ(Known(index, "bbcd"), 0);
  EXPECT_EQ(index.Find({}).image, nullptr);
}

TEST_F(PrefixIndexTest, IsNeverSharedAcrossPrincipals) {
  PrefixIndex index = MakeIndex(10);
  ASSERT_TRUE(Keep(index, "abc", "alice"));
  EXPECT_EQ(Known(index, "abc", "bob"), 0);
  EXPECT_EQ(Known(index, "abc", ""), 0);
  Start(index, "abc", "bob");
  EXPECT_EQ(index.counts().hits, 0);
  EXPECT_EQ(index.counts().misses, 1);
  // Bob's own does not take the place of Alice's, nor does it go with hers.
  ASSERT_TRUE(Keep(index, "abc", "bob"));
  EXPECT_EQ(index.counts().entries, 2);
  EXPECT_EQ(index.Drop("alice"), 1);
  EXPECT_EQ(Known(index, "abc", "alice"), 0);
  EXPECT_EQ(Known(index, "abc", "bob"), 30);
}

TEST_F(PrefixIndexTest, LetsGoWhatNoSessionHasBegunWithForLongest) {
  PrefixIndex index = MakeIndex(3);
  ASSERT_TRUE(Keep(index, "a") && Keep(index, "b") && Keep(index, "c"));
  Start(index, "a");
  ASSERT_TRUE(Keep(index, "d"));
  EXPECT_EQ(Known(index, "b"), 0);
  ASSERT_TRUE(Keep(index, "c")) << "it is there, and used again";
  ASSERT_TRUE(Keep(index, "e"));
  EXPECT_EQ(Known(index, "a"), 0);
  EXPECT_EQ(Known(index, "c"), 10);
  EXPECT_EQ(index.counts().evictions, 2);
  EXPECT_EQ(index.counts().used_bytes, 3 * kEntryBytes);
  EXPECT_EQ(ledger_.held(BytePool::kHost), 3 * kEntryBytes);
}

TEST_F(PrefixIndexTest, OfTheAccountThatHoldsMostGoesFirst) {
  ledger_.List("alice", 1);
  ledger_.List("bob", 1);
  PrefixIndex index = MakeIndex(4);
  ASSERT_TRUE(Keep(index, "a", "bob"));
  for (const char* prompt : {"a", "b", "c"}) ASSERT_TRUE(Keep(index, prompt, "alice"));
  ASSERT_TRUE(Keep(index, "b", "bob")) << "the oldest is Bob's, and Alice has more";
  EXPECT_EQ(Known(index, "a", "bob"), 10);
  EXPECT_EQ(Known(index, "a", "alice"), 0);
}

TEST_F(PrefixIndexTest, TheOldestGoesFirstIfAccountsHoldEquallyMuch) {
  for (const auto& [older, newer] : {std::pair("alice", "bob"), std::pair("bob", "alice")}) {
    for (const char* name : {"alice", "bob", "carol"}) ledger_.List(name, 1);
    PrefixIndex index = MakeIndex(2);
    ASSERT_TRUE(Keep(index, "a", older) && Keep(index, "b", newer) && Keep(index, "c", "carol"));
    EXPECT_EQ(Known(index, "a", older), 0);
    EXPECT_EQ(Known(index, "b", newer), 10);
  }
}

TEST_F(PrefixIndexTest, TakesNothingThatDoesNotFitAndLetsNothingGoForIt) {
  PrefixIndex index = MakeIndex(2);
  ASSERT_TRUE(Keep(index, "a") && Keep(index, "b"));
  const auto large = index.Begin(KeysOf(PromptOf("c")).back(), "p", Account("p"), 2 * kEntryBytes + 1);
  EXPECT_FALSE(large.place.begun());
  EXPECT_FALSE(large.there);
  EXPECT_EQ(index.counts().entries, 2);
  PrefixIndex off = MakeIndex(0);
  EXPECT_FALSE(off.on());
  EXPECT_FALSE(Keep(off, "a"));
  EXPECT_EQ(ledger_.held(BytePool::kHost), 2 * kEntryBytes);
}

TEST_F(PrefixIndexTest, GivesAPlaceToOneCallAtATimeAndBackWhereItIsNotKept) {
  PrefixIndex index = MakeIndex(2);
  const PrefixKey key = KeysOf(PromptOf("a")).back();
  {
    const auto first = index.Begin(key, "p", Account("p"), kEntryBytes);
    ASSERT_TRUE(first.place.begun());
    EXPECT_FALSE(first.there);
    const auto second = index.Begin(key, "p", Account("p"), kEntryBytes);
    EXPECT_FALSE(second.place.begun());
    EXPECT_TRUE(second.there);
    EXPECT_EQ(Known(index, "a"), 0) << "it is not copied yet";
    EXPECT_EQ(index.counts().used_bytes, kEntryBytes);
    // An entry that is being copied takes room, and is not evicted.
    ASSERT_TRUE(Keep(index, "b"));
    ASSERT_TRUE(Keep(index, "c"));
    EXPECT_EQ(Known(index, "b"), 0);
  }
  EXPECT_EQ(index.counts().used_bytes, kEntryBytes);
  EXPECT_EQ(ledger_.held(BytePool::kHost), kEntryBytes);
}

TEST_F(PrefixIndexTest, KeepsNothingThatWasDroppedWhileItWasCopied) {
  PrefixIndex index = MakeIndex(3);
  const PrefixKey key = KeysOf(PromptOf("a")).back();
  auto early = index.Begin(key, "p", Account("p"), kEntryBytes);
  EXPECT_EQ(index.Drop("p"), 1);
  auto late = index.Begin(key, "p", Account("p"), kEntryBytes);
  ASSERT_TRUE(late.place.begun());
  early.place.Keep(10, std::make_shared<SessionImage>());
  EXPECT_EQ(Known(index, "a"), 0);
  late.place.Keep(10, std::make_shared<SessionImage>());
  EXPECT_EQ(Known(index, "a"), 10);
  EXPECT_EQ(index.counts().used_bytes, kEntryBytes);
}

TEST_F(PrefixIndexTest, AnImageThatIsInUseOutlivesItsEntry) {
  PrefixIndex index = MakeIndex(1);
  auto image = std::make_shared<SessionImage>();
  const std::weak_ptr<SessionImage> watch = image;
  ASSERT_TRUE(Keep(index, "a", "p", std::move(image)));
  PrefixStart start = index.Find(KeysOf(PromptOf("ab")));
  ASSERT_TRUE(Keep(index, "b"));
  EXPECT_EQ(Known(index, "a"), 0);
  EXPECT_FALSE(watch.expired());
  index.NoteStart(start);  // of an entry that is gone
  start = {};
  EXPECT_TRUE(watch.expired());
  EXPECT_EQ(index.counts().hits, 1);
}

TEST_F(PrefixIndexTest, MakesWayForSessionsInTheirMemory) {
  int64_t left = 3 * kEntryBytes;
  PrefixIndex index(ledger_,
                    {.limit_bytes = 10 * kEntryBytes, .left_bytes = [&left] { return left; }, .clock = clock_});
  for (const char* prompt : {"a", "b", "c", "d"}) ASSERT_TRUE(Keep(index, prompt));
  EXPECT_EQ(index.counts().entries, 3);
  left = kEntryBytes + 50;
  index.Trim();
  EXPECT_EQ(index.counts().entries, 1);
  EXPECT_EQ(Known(index, "d"), 10);
  EXPECT_EQ(index.counts().limit_bytes, left);
  left = -7;
  index.Trim();
  EXPECT_EQ(index.counts().entries, 0);
  EXPECT_FALSE(Keep(index, "e"));
}

TEST_F(PrefixIndexTest, KeepsAnAccountToItsQuotaOfHostMemory) {
  ledger_.List("alice", 1);
  QuotaSettings quotas;
  quotas.principals["alice"].limits[Quota::kHostBytes] = 2 * kEntryBytes;
  ledger_.SetQuotas(quotas, /*now_ns=*/0);
  PrefixIndex index = MakeIndex(10);
  ASSERT_TRUE(Keep(index, "a", "bob"));
  for (const char* prompt : {"a", "b", "c"}) ASSERT_TRUE(Keep(index, prompt, "alice"));
  EXPECT_EQ(Known(index, "a", "alice"), 0) << "her own oldest has gone";
  EXPECT_EQ(Known(index, "a", "bob"), 10);
  EXPECT_TRUE(index.DropOneOf(*Account("alice")) && index.DropOneOf(*Account("alice")));
  EXPECT_FALSE(index.DropOneOf(*Account("alice")));
  EXPECT_EQ(index.counts().entries, 1);
}

TEST_F(PrefixIndexTest, LetsGoWhatWasNotUsedForItsTimeToLive) {
  PrefixIndex index = MakeIndex(10, absl::Minutes(1));
  ASSERT_TRUE(Keep(index, "a") && Keep(index, "b"));
  clock_.Advance(absl::Seconds(50));
  Start(index, "a");
  clock_.Advance(absl::Seconds(20));
  index.DropExpired();
  EXPECT_EQ(Known(index, "a"), 10);
  EXPECT_EQ(Known(index, "b"), 0);
  EXPECT_EQ(index.counts().expired, 1);
}

TEST_F(PrefixIndexTest, StaysWholeUnderManyThreads) {
  PrefixIndex index = MakeIndex(5);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&index, this, t] {
      const std::string principal = t % 2 == 0 ? "even" : "odd";
      const ByteAccountPtr account = Account(principal);
      for (int i = 0; i < 300; ++i) {
        const auto segments = PromptOf(std::string(1, static_cast<char>('a' + i % 7)));
        const auto keys = KeysOf(segments, principal);
        if (auto beginning = index.Begin(keys.back(), principal, account, kEntryBytes);
            beginning.place.begun() && i % 5 != 0) {
          beginning.place.Keep(10, std::make_shared<SessionImage>());
        }
        index.NoteStart(index.Find(keys));
        if (i % 50 == 0) index.Drop(principal);
        if (i % 30 == 0) index.Trim();
        if (i % 40 == 0) index.DropExpired();
        EXPECT_LE(index.counts().used_bytes, 5 * kEntryBytes);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(index.counts().hits + index.counts().misses, 4 * 300);
  index.Drop("even");
  index.Drop("odd");
  EXPECT_EQ(index.counts().used_bytes, 0);
  EXPECT_EQ(ledger_.held(BytePool::kHost), 0);
}

}  // namespace
}  // namespace gdn::prefix_index_test
