#include "base/hash.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <string>
#include <string_view>

#include "base/threads/this_thread.h"
#include "gtest/gtest.h"

namespace gdn::hash_test {
namespace {

TEST(Hash, MatchesThePublishedDigestOfTheEmptyString) {
  EXPECT_EQ(HashBytes("").ToHex(), "99aa06d3014798d86001c324468d497f");  // XXH3-128 of "", seed 0
}

TEST(Hash64, MatchesThePublishedDigests) {
  EXPECT_EQ(Hash64(""), 0x2d06800538d394c2u);  // XXH3-64, seed 0
  EXPECT_EQ(Hash64("abc"), 0x78af5f94892f3950u);
}

TEST(Hash64, ChangesWithEveryByte) {
  std::string bytes(300, 'x');
  const uint64_t before = Hash64(bytes);
  for (char& byte : bytes) {
    byte ^= 1;
    EXPECT_NE(Hash64(bytes), before);
    byte ^= 1;
  }
}

TEST(Hash, StreamingEqualsOneShotForEverySplitInBothWidths) {
  std::string bytes(5000, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 31 + i / 7);
  for (const std::string_view view : {std::string_view(bytes).substr(0, 1000), std::string_view(bytes)}) {
    for (const size_t split : {size_t{0}, size_t{1}, size_t{16}, size_t{240}, size_t{241}, size_t{256}, size_t{512},
                               size_t{1000}, view.size() - 1, view.size()}) {
      Hasher hasher;
      hasher.Update(view.substr(0, split));
      hasher.Update(view.substr(split));
      EXPECT_EQ(hasher.Finish(), HashBytes(view)) << split;
      EXPECT_EQ(hasher.Finish64(), Hash64(view)) << split;
    }
  }
}

TEST(Hash, IsTheSameWhereTheThreadGivesWay) {
  std::string bytes(3 * kGiveWayBytes + 1, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * i >> 3);
  for (const size_t size : {size_t{0}, kGiveWayBytes - 1, kGiveWayBytes, kGiveWayBytes + 1, bytes.size()}) {
    const std::string_view part(bytes.data(), size);
    const Hash128 expected = HashBytes(part);
    const GivesWay gives_way;
    EXPECT_EQ(HashBytes(part), expected) << size;
  }
}

TEST(Hash, FinishDoesNotEndTheStream) {
  Hasher hasher;
  hasher.Update("ab");
  EXPECT_EQ(hasher.Finish(), HashBytes("ab"));
  hasher.Update("c");
  EXPECT_EQ(hasher.Finish(), HashBytes("abc"));
}

TEST(Hash, FieldsDoNotRunIntoEachOther) {
  Hasher first;
  first.UpdateField("ab");
  first.UpdateField("c");
  Hasher second;
  second.UpdateField("a");
  second.UpdateField("bc");
  EXPECT_NE(first.Finish(), second.Finish());
}

TEST(Hash, IntegersAreEightLittleEndianBytes) {
  Hasher hasher;
  hasher.UpdateInt(-2);
  hasher.UpdateInt(0x0102030405060708);
  EXPECT_EQ(hasher.Finish(), HashBytes("\xfe\xff\xff\xff\xff\xff\xff\xff\x08\x07\x06\x05\x04\x03\x02\x01"));
}

TEST(Hash, HexIsBigEndianAndPadded) {
  EXPECT_EQ((Hash128{.high = 0x1, .low = 0xabcdef0000000002}).ToHex(), "0000000000000001abcdef0000000002");
}

#if defined(__x86_64__)
// Whether the upper halves of the vector registers are in use, by the processor's own record.
[[gnu::target("xsave")]] bool UpperHalvesAreInUse() { return (__builtin_ia32_xgetbv(1) & 4) != 0; }
[[gnu::target("avx")]] void ClearUpperHalves() { __builtin_ia32_vzeroupper(); }

TEST(Hash, LeavesNoUpperHalvesOfVectorRegistersInUse) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool has_record = __get_cpuid_count(0xd, 1, &a, &b, &c, &d) != 0 && (a & 4) != 0;
  if (!has_record || !__builtin_cpu_supports("avx")) GTEST_SKIP() << "the processor keeps no such record";
  ClearUpperHalves();
  if (UpperHalvesAreInUse()) GTEST_SKIP() << "the processor's record does not follow vzeroupper";
  const std::string bytes(100'000, 'x');
  const auto left_by = [](auto hash) {
    ClearUpperHalves();
    hash();
    return UpperHalvesAreInUse();
  };
  EXPECT_FALSE(left_by([&] { HashBytes(bytes); }));
  EXPECT_FALSE(left_by([&] { Hash64(bytes); }));
  Hasher hasher;
  EXPECT_FALSE(left_by([&] { hasher.Update(bytes); }));
  EXPECT_FALSE(left_by([&] { hasher.Finish(); }));
  EXPECT_FALSE(left_by([&] { hasher.Finish64(); }));
}
#endif

}  // namespace
}  // namespace gdn::hash_test
