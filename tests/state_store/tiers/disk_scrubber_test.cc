// DiskScrubber: damage that is planted on the disk is found, set aside and made up for; nobody is disturbed.
#include "state_store/tiers/disk/disk_scrubber.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/assert_ok.h"

namespace gdn::disk_scrubber_test {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Stands still unless it is told to go on.
class SetClock final : public SteadyClock {
 public:
  SteadyTime Now() const override { return now_; }
  void Advance(absl::Duration by) { now_ = now_ + by; }

 private:
  SteadyTime now_ = SteadyTime::FromNanos(1'000'000'000'000);
};

StateKey KeyOf(const std::string& id, const std::string& checkpoint = "") {
  return {.principal = "ab12", .id = id, .checkpoint = checkpoint};
}

TestSession SessionOf(const std::string& id, int64_t changes = 7) {
  TestSession session = MakeModelSession();
  session.header.id = id;
  session.header.changes = changes;
  return session;
}

class DiskScrubberTest : public DiskTierFixture {
 protected:
  DiskScrubberTest() { MakeScrubber(); }

  // Anew, with nothing but what lies on the disk.
  void Restart() {
    scrubber_.reset();
    stack_.reset();
    Open();
    MakeScrubber();
  }
  void MakeScrubber() {
    stack_.emplace(std::vector<StateTier*>{&host_, tier_.get(), &redis_});
    scrubber_.emplace(DiskScrubberParts{.disk = *tier_,
                                        .tiers = *stack_,
                                        .activity = [this] { return activity_; },
                                        .on_not_durable = [this](const StateKey& key) { not_durable_.push_back(key); }},
                      DiskScrubberOptions{.bytes_per_second = kRate, .clock = &clock_});
  }

  SessionImagePtr ImageOf(const TestSession& session) { return MakeImage(session, memory_.host); }
  void Park(const std::string& id, int64_t changes = 7) {
    const absl::Status status = stack_->Park(KeyOf(id), ImageOf(SessionOf(id, changes)));
    ASSERT_TRUE(status.ok()) << status;
  }
  std::string PathOf(const std::string& id, const std::string& name = "state.safetensors") const {
    return StrCat(path_, "/sessions/ab12/s-", id, "/", name);
  }
  static void FlipBit(const std::string& path, int64_t at) {
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(at);
    const int byte = file.get();
    ASSERT_GE(byte, 0) << path;
    file.seekp(at);
    file.put(static_cast<char>(byte ^ 1));
  }
  static void FlipLastBit(const std::string& path) { FlipBit(path, static_cast<int64_t>(fs::file_size(path)) - 1); }

  // Steps, with the time between them that each asks for, until a pass has ended.
  void Pass() {
    const absl::Time before = scrubber_->counts().last_pass;
    for (int steps = 0; scrubber_->counts().last_pass == before; ++steps) {
      ASSERT_LT(steps, 100'000);
      clock_.Advance(scrubber_->Step());
    }
  }
  // Steps until the header of a file has been read, and none of its tensors.
  void BeginFile() {
    const int64_t before = scrubber_->counts().verified_bytes;
    while (scrubber_->counts().verified_bytes == before) clock_.Advance(scrubber_->Step());
  }
  int64_t Damaged() const {
    const ScrubCounts counts = scrubber_->counts();
    return counts.copy_used + counts.not_durable + counts.lost;
  }
  // Below the folder of sessions.
  std::set<std::string> Files(const std::string& suffix) const {
    std::set<std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(path_ + "/sessions")) {
      if (file.path().string().ends_with(suffix)) files.insert(file.path().string());
    }
    return files;
  }
  int64_t BytesOnDisk() const {
    int64_t bytes = 0;
    for (const std::string& file : Files("")) {
      if (fs::is_regular_file(file)) bytes += static_cast<int64_t>(fs::file_size(file));
    }
    return bytes;
  }
  void ExpectLost(const std::string& id) {
    const absl::Status lost = stack_->Fetch(KeyOf(id)).status();
    EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
    EXPECT_EQ(ErrorReason(lost), reason::kInvalidStateFile) << lost;
  }

  static constexpr int64_t kRate = 4096;  // bytes a second

  SetClock clock_;
  ScrubActivity activity_;
  std::vector<StateKey> not_durable_;
  FakeTier host_{"host", false, 1};  // takes nothing, unless a test parks there
  FakeTier redis_{"redis", true, 0};
  std::optional<TierStack> stack_;
  std::optional<DiskScrubber> scrubber_;
};

TEST_F(DiskScrubberTest, APassReadsEveryStateOnceAndTheNextComesLater) {
  Park("a");
  Park("b");
  ASSERT_TRUE(stack_->Checkpoint(KeyOf("a", "before"), ImageOf(SessionOf("a"))).ok());
  Pass();
  const ScrubCounts first = scrubber_->counts();
  EXPECT_EQ(first.verified_states, 3);
  EXPECT_EQ(first.verified_bytes, BytesOnDisk());
  EXPECT_EQ(Damaged(), 0);
  EXPECT_EQ(tier_->usage().loads, 0);
  for (int i = 0; i < 100; ++i) scrubber_->Step();
  EXPECT_EQ(scrubber_->counts().verified_bytes, first.verified_bytes) << "no time has passed";
  clock_.Advance(absl::Hours(1));
  Pass();
  EXPECT_EQ(scrubber_->counts().verified_states, 6);
}

TEST_F(DiskScrubberTest, WhatAServerThatCrashedLeftIsReadTooAndDeltasAre) {
  for (const int32_t tokens : {1, 2}) {  // more in the logs, with the same bases
    TestSession session = SessionOf("a", tokens);
    for (TestLayer& layer : session.layers) {
      const auto number = static_cast<uint64_t>(layer.layer);
      const std::vector<float> base = Random(number).Normal(kModelDims.state_elements());
      Random log(number + static_cast<uint64_t>(tokens));
      layer = MakeLayer(kModelDims, layer.layer, {.token_count = 100 + tokens, .log_length = tokens}, log);
      layer.base = base;
      layer.base_version = 10 + number;
    }
    GDN_ASSERT_OK_AND_ASSIGN(const StoreResult stored, Store(KeyOf("a"), session));
    ASSERT_EQ(stored.incremental, tokens == 2);
  }
  Restart();
  Pass();
  EXPECT_EQ(scrubber_->counts().verified_states, 1);
  EXPECT_EQ(scrubber_->counts().verified_bytes, BytesOnDisk());

  const std::string delta = PathOf("a", "state.delta.safetensors");
  FlipLastBit(delta);
  clock_.Advance(absl::Hours(1));
  Pass();
  EXPECT_EQ(scrubber_->counts().lost, 1) << "though nobody had taken the session over";
  EXPECT_THAT(Files(".safetensors"), IsEmpty()) << "an older state must not come to light";
  EXPECT_EQ(Files(".damaged").size(), 2u);
  Restart();
  GDN_ASSERT_OK_AND_ASSIGN(const auto listed, tier_->List());
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].header.changes, 2) << "as the delta says";
}

TEST_F(DiskScrubberTest, AFlippedBitIsFoundAnywhereInTheFile) {
  Park("whole");
  Park("a");
  const auto size = static_cast<int64_t>(fs::file_size(PathOf("a")));
  for (int64_t at = 0; at < size; at += at < 64 ? 7 : 997) {
    Park("a");
    FlipBit(PathOf("a"), at);
    const int64_t before = scrubber_->counts().lost;
    clock_.Advance(absl::Hours(1));
    Pass();
    ASSERT_EQ(scrubber_->counts().lost, before + 1) << "bit at byte " << at;
    ExpectLost("a");
    EXPECT_THAT(Files(".damaged"), ElementsAre(PathOf("a") + ".damaged"));
  }
  ExpectLoads(*tier_, KeyOf("whole"), SessionOf("whole"));
  EXPECT_EQ(tier_->usage().used_bytes, BytesOnDisk());
}

TEST_F(DiskScrubberTest, ATruncatedFileIsFound) {
  Park("a");
  const auto size = static_cast<int64_t>(fs::file_size(PathOf("a")));
  for (const int64_t length : {int64_t{0}, int64_t{5}, int64_t{100}, size / 2, size - 1}) {
    Park("a");
    fs::resize_file(PathOf("a"), static_cast<uintmax_t>(length));
    const int64_t before = scrubber_->counts().lost;
    clock_.Advance(absl::Hours(1));
    Pass();
    ASSERT_EQ(scrubber_->counts().lost, before + 1) << length;
    ExpectLost("a");
  }
}

TEST_F(DiskScrubberTest, AFileCutWhileItIsReadIsFound) {
  Park("a");
  BeginFile();
  fs::resize_file(PathOf("a"), fs::file_size(PathOf("a")) - 1);
  Pass();
  EXPECT_EQ(scrubber_->counts().lost, 1);
}

TEST_F(DiskScrubberTest, WhatIsLostStaysLostOverARestartAndIsThereAgainOnceItIsStored) {
  Park("a");
  ASSERT_TRUE(stack_->Checkpoint(KeyOf("a", "before"), ImageOf(SessionOf("a"))).ok());
  FlipLastBit(PathOf("a"));
  Pass();
  ExpectLost("a");
  Restart();
  GDN_ASSERT_OK_AND_ASSIGN(const auto listed, tier_->List());
  EXPECT_EQ(listed.size(), 2u) << "the session is known, so its checkpoint can be had";
  for (const StoredSession& stored : listed) stack_->Adopt(stored.key, *tier_, stored.bytes, stored.header.version());
  ExpectLost("a");
  EXPECT_THAT(std::string(stack_->Fetch(KeyOf("a")).status().message()), HasSubstr(".damaged"));
  ExpectLoads(*tier_, KeyOf("a", "before"), SessionOf("a"));
  Pass();
  EXPECT_EQ(Damaged(), 0) << "it is known already";
  EXPECT_EQ(scrubber_->counts().verified_states, 1);
  Park("a", 8);
  ExpectLoads(*tier_, KeyOf("a"), SessionOf("a", 8));
  ASSERT_TRUE(stack_->Erase(KeyOf("a")).ok());
  EXPECT_THAT(Files("safetensors.damaged"), IsEmpty()) << "what was set aside ends with its session";
  EXPECT_EQ(tier_->usage().used_bytes, 0);
}

TEST_F(DiskScrubberTest, AFileThatIsReplacedOrRemovedWhileItIsReadIsNoDamage) {
  for (const bool removed : {false, true}) {
    Park("a");
    clock_.Advance(absl::Hours(1));
    BeginFile();
    FlipLastBit(PathOf("a"));
    removed ? void(stack_->Erase(KeyOf("a")).ok()) : Park("a", 9);
    Pass();
    EXPECT_EQ(Damaged(), 0);
  }
  // The same a moment later: what was read is damaged, and is not what is there now.
  Park("a");
  FlipLastBit(PathOf("a"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto check, FileCheck::Open(KeyOf("a"), PathOf("a")));
  absl::StatusOr<bool> whole = false;
  while (whole.ok() && !*whole) whole = check->Advance(1000);
  ASSERT_TRUE(absl::IsDataLoss(whole.status())) << whole.status();
  Park("a", 10);
  GDN_ASSERT_OK_AND_ASSIGN(const bool aside, tier_->SetAside(KeyOf("a"), *check, whole.status()));
  EXPECT_FALSE(aside);
  ExpectLoads(*tier_, KeyOf("a"), SessionOf("a", 10));
}

TEST_F(DiskScrubberTest, AnEqualCopyElsewhereTakesThePlaceOfADamagedOne) {
  const SessionImagePtr image = ImageOf(SessionOf("a"));
  Park("a");
  ASSERT_TRUE(redis_.Store(KeyOf("a"), image).ok());
  stack_->Adopt(KeyOf("a"), redis_, image->bytes(), image->header.version());
  stack_->Adopt(KeyOf("a"), *tier_, image->bytes(), image->header.version());
  FlipLastBit(PathOf("a"));
  Pass();
  EXPECT_EQ(scrubber_->counts().copy_used, 1);
  ExpectLoads(*tier_, KeyOf("a"), SessionOf("a"));
  EXPECT_TRUE(stack_->Fetch(KeyOf("a")).ok());
  EXPECT_EQ(tier_->set_aside().states, 1);
}

TEST_F(DiskScrubberTest, WhereTheDiskTakesItNoMoreTheOtherCopyIsUsedWhereItIs) {
  const SessionImagePtr image = ImageOf(SessionOf("a"));
  Park("a");
  stack_.reset();
  Open(/*limit_bytes=*/BytesOnDisk());  // what is set aside leaves no room
  MakeScrubber();
  ASSERT_TRUE(redis_.Store(KeyOf("a"), image).ok());
  stack_->Adopt(KeyOf("a"), redis_, image->bytes(), image->header.version());
  stack_->Adopt(KeyOf("a"), *tier_, image->bytes(), image->header.version());
  FlipLastBit(PathOf("a"));
  Pass();
  EXPECT_EQ(scrubber_->counts().copy_used, 1);
  EXPECT_EQ(stack_->PlaceOf(KeyOf("a")), "redis");
  EXPECT_TRUE(stack_->Fetch(KeyOf("a")).ok());
}

TEST_F(DiskScrubberTest, AnOlderCopyIsNotTakenForTheState) {
  const SessionImagePtr old = ImageOf(SessionOf("a", 3));
  Park("a");
  ASSERT_TRUE(redis_.Store(KeyOf("a"), old).ok());
  stack_->Adopt(KeyOf("a"), redis_, old->bytes(), old->header.version());
  stack_->Adopt(KeyOf("a"), *tier_, 100, ImageOf(SessionOf("a"))->header.version());
  FlipLastBit(PathOf("a"));
  Pass();
  EXPECT_EQ(scrubber_->counts().lost, 1);
  ExpectLost("a");
}

TEST_F(DiskScrubberTest, ACopyInHostMemoryMakesTheCheckpointAnew) {
  stack_.reset();
  FakeTier host("host", false, 0);
  stack_.emplace(std::vector<StateTier*>{&host, tier_.get()});
  scrubber_.emplace(DiskScrubberParts{.disk = *tier_, .tiers = *stack_, .activity = [this] { return activity_; }},
                    DiskScrubberOptions{.bytes_per_second = kRate, .clock = &clock_});
  ASSERT_TRUE(stack_->Checkpoint(KeyOf("a"), ImageOf(SessionOf("a"))).ok());
  Park("a", 8);
  ASSERT_EQ(stack_->PlaceOf(KeyOf("a")), "host");
  FlipLastBit(PathOf("a"));
  Pass();
  EXPECT_EQ(scrubber_->counts().copy_used, 1);
  ExpectLoads(*tier_, KeyOf("a"), SessionOf("a", 8));
  EXPECT_EQ(stack_->PlaceOf(KeyOf("a")), "host");
}

TEST_F(DiskScrubberTest, ASessionOnTheDeviceIsToldThatItsCheckpointIsGone) {
  ASSERT_TRUE(stack_->Checkpoint(KeyOf("a"), ImageOf(SessionOf("a"))).ok());
  FlipLastBit(PathOf("a"));
  Pass();
  EXPECT_EQ(scrubber_->counts().not_durable, 1);
  EXPECT_THAT(not_durable_, ElementsAre(KeyOf("a")));
  EXPECT_TRUE(tier_->KnownBases(KeyOf("a")).empty()) << "the next checkpoint is to be whole";
}

TEST_F(DiskScrubberTest, ItStopsForWorkBetweenTwoPieces) {
  Park("a");
  activity_.busy = true;
  for (int i = 0; i < 100; ++i) clock_.Advance(scrubber_->Step());
  EXPECT_EQ(scrubber_->counts().verified_bytes, 0) << "there is work";
  activity_.busy = false;
  for (int i = 0; i < 100; ++i) {
    ++activity_.work;
    clock_.Advance(scrubber_->Step());
  }
  EXPECT_EQ(scrubber_->counts().verified_bytes, 0) << "there was, between any two looks";
  BeginFile();
  const int64_t begun = scrubber_->counts().verified_bytes;
  clock_.Advance(absl::Minutes(1));
  activity_.busy = true;
  for (int i = 0; i < 100; ++i) clock_.Advance(scrubber_->Step());
  EXPECT_EQ(scrubber_->counts().verified_bytes, begun);
  activity_.busy = false;
  const SteadyTime idle = clock_.Now();
  while (scrubber_->counts().verified_bytes == begun) clock_.Advance(scrubber_->Step());
  EXPECT_GE(clock_.Now() - idle, absl::Seconds(2)) << "a pause is no idleness yet";
  Pass();
  EXPECT_EQ(scrubber_->counts().verified_bytes, BytesOnDisk()) << "it went on where it was";
}

TEST_F(DiskScrubberTest, ItKeepsToItsRate) {
  for (const char* id : {"a", "b", "c"}) Park(id);
  const SteadyTime begun = clock_.Now();
  int64_t last = 0;
  while (scrubber_->counts().last_pass == absl::InfinitePast()) {
    scrubber_->Step();
    const int64_t bytes = scrubber_->counts().verified_bytes;
    // The bytes of the last step may be ahead of the rate, but none before them.
    EXPECT_LE(absl::Seconds(static_cast<double>(last) / kRate), clock_.Now() - begun + absl::Nanoseconds(1'000));
    if (bytes == last) clock_.Advance(absl::Milliseconds(10));
    last = bytes;
  }
  EXPECT_EQ(last, BytesOnDisk());
}

TEST_F(DiskScrubberTest, OfManyDamagedStatesTheLastFewAreKept) {
  const auto most = static_cast<size_t>(DiskTier::kMostSetAside);
  for (size_t i = 0; i < most + 3; ++i) {
    Park(StrCat("s", i));
    FlipLastBit(PathOf(StrCat("s", i)));
  }
  Park("whole");
  Pass();
  EXPECT_EQ(scrubber_->counts().lost, static_cast<int64_t>(most) + 3);
  EXPECT_EQ(Files(".damaged").size(), most);
  EXPECT_EQ(tier_->set_aside().states, static_cast<int64_t>(most));
  EXPECT_EQ(tier_->usage().used_bytes, BytesOnDisk());
  for (size_t i = 0; i < most + 3; ++i) ExpectLost(StrCat("s", i));
  ExpectLoads(*tier_, KeyOf("whole"), SessionOf("whole"));
  Restart();
  EXPECT_EQ(tier_->set_aside().states, static_cast<int64_t>(most));
  EXPECT_EQ(tier_->usage().used_bytes, BytesOnDisk());
}

}  // namespace
}  // namespace gdn::disk_scrubber_test
