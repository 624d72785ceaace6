#include "state_store/tiers/disk/disk_tier.h"

#include <sys/stat.h>

#include <sys/mount.h>
#include <sys/resource.h>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::disk_tier_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using ::testing::UnorderedElementsAre;

const StateKey kKey{.principal = "ab12", .id = "chat-1", .checkpoint = ""};

// The session with versions of its bases, and `tokens` more in each log.
TestSession At(uint64_t bases, int32_t tokens, uint64_t seed = 5) {
  Random random(seed + bases * 1000);
  TestSession session = MakeModelSession();
  session.header.epoch = static_cast<int64_t>(bases);
  for (size_t i = 0; i < session.layers.size(); ++i) {
    TestLayer& layer = session.layers[i];
    std::vector<float> base = random.Normal(kModelDims.state_elements());
    Random log(seed + 31 * static_cast<uint64_t>(tokens) + i);
    layer = MakeLayer(kModelDims, layer.layer, {.token_count = 100 + tokens, .log_length = tokens}, log);
    layer.base = base;
    layer.base_version = bases * 10 + i;
  }
  return session;
}

TestSession WithoutBases(TestSession session) {
  for (TestLayer& layer : session.layers) layer.has_base = false;
  return session;
}

class DiskTierTest : public DiskTierFixture {
 protected:
  std::set<std::string> Files() const {
    std::set<std::string> files;
    for (const auto& file : fs::recursive_directory_iterator(path_ + "/sessions")) {
      if (file.is_regular_file()) files.insert(fs::relative(file.path(), path_ + "/sessions").string());
    }
    return files;
  }
};

TEST_F(DiskTierTest, KeepsSessionsAcrossProcesses) {
  const TestSession model = MakeModelSession();
  TestSession bare = MakeOperatorSession();
  const StateKey anonymous{.principal = "", .id = "op", .checkpoint = ""};
  ASSERT_TRUE(Store(kKey, model).ok());
  ASSERT_TRUE(Store(anonymous, bare).ok());
  EXPECT_THAT(Files(), UnorderedElementsAre("ab12/s-chat-1/state.safetensors", "anonymous/s-op/state.safetensors"));
  ExpectLoads(*tier_, kKey, model);
  Open();
  ExpectLoads(*tier_, kKey, model);
  ExpectLoads(*tier_, anonymous, bare);
  EXPECT_EQ(tier_->usage().sessions, 2);
  EXPECT_EQ(tier_->usage().loads, 2);
  EXPECT_TRUE(absl::IsNotFound(tier_->Load({.principal = "", .id = "chat-1", .checkpoint = ""}).status()));
}

TEST_F(DiskTierTest, AStateOfAnotherDtypeIsRefusedAndStays) {
  const TestSession session = MakeModelSession();
  ASSERT_TRUE(tier_->Store(kKey, MakeImage(session, memory_.host, {.base_dtype = DType::kBF16})).ok());
  const auto files = Files();
  for (int i = 0; i < 2; ++i) {
    const absl::Status refused = tier_->Load(kKey).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(refused), reason::kStateMismatch);
    EXPECT_THAT(std::string(refused.message()), HasSubstr("--state-dtype=bf16"));
    EXPECT_EQ(Files(), files);
    Open();
  }
  GDN_ASSERT_OK_AND_ASSIGN(const auto described, tier_->Describe(kKey));
  EXPECT_EQ(described.header.id, "chat-1");
  tier_ = nullptr;
  tier_ = *DiskTier::Open({.directory = path_, .max_draft = 8, .base_dtype = DType::kBF16}, memory_.host);
  ExpectLoads(*tier_, kKey, WithRoundedBases(session));
}

TEST_F(DiskTierTest, DescribesAStateWithoutReadingIt) {
  StateKey named = kKey;
  named.checkpoint = "before";
  ASSERT_TRUE(Store(kKey, MakeModelSession()).ok());
  const int64_t bytes = tier_->usage().used_bytes;
  ASSERT_TRUE(Store(named, MakeModelSession()).ok());
  for (const bool reopened : {false, true}) {
    if (reopened) Open();
    GDN_ASSERT_OK_AND_ASSIGN(const StoredSession found, tier_->Describe(named));
    EXPECT_EQ(found.key, named);
    EXPECT_EQ(found.bytes, tier_->usage().used_bytes - bytes);
    EXPECT_EQ(found.layers.size(), MakeModelSession().layers.size());
    EXPECT_EQ(tier_->usage().loads, 0);
  }
  named.checkpoint = "after";
  EXPECT_TRUE(absl::IsNotFound(tier_->Describe(named).status()));
}

TEST_F(DiskTierTest, TheFilesAreOrdinarySafetensorsFiles) {
  ASSERT_TRUE(Store(kKey, MakeModelSession()).ok());
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Open(path_ + "/sessions/ab12/s-chat-1/state.safetensors"));
  EXPECT_TRUE(file.Contains("layer.2.base_state"));
}

TEST_F(DiskTierTest, LogsAreWrittenAloneWhileBasesStay) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  const int64_t full = tier_->usage().used_bytes;
  for (const int32_t tokens : {2, 3}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto result, Store(kKey, tokens == 2 ? At(1, 2) : WithoutBases(At(1, 3))));
    EXPECT_TRUE(result.incremental);
    EXPECT_LT(result.written_bytes, full);
    EXPECT_EQ(tier_->usage().used_bytes, full + result.written_bytes);
    ExpectLoads(*tier_, kKey, At(1, tokens));
    EXPECT_EQ((*tier_->Load(kKey))->layers[1].base_version, 11u);
  }
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_EQ(tier_->KnownBases(kKey), (BaseVersions{{0, 10}, {2, 11}, {11, 12}}));
  // New bases: a whole file, and no delta.
  const auto folded = Store(kKey, At(2, 0));
  EXPECT_FALSE(folded->incremental);
  EXPECT_EQ(Files().size(), 1u);
  EXPECT_EQ(tier_->usage().used_bytes, folded->written_bytes);
  ExpectLoads(*tier_, kKey, At(2, 0));
  // A new process knows the states, but not the versions of their bases.
  ASSERT_TRUE(Store(kKey, At(2, 1)).ok());
  Open();
  EXPECT_THAT(tier_->KnownBases(kKey), IsEmpty());
  ExpectLoads(*tier_, kKey, At(2, 1));
  EXPECT_EQ((*tier_->Load(kKey))->layers[1].base_version, 0u);
}

TEST_F(DiskTierTest, BasesThatWereLeftOutAreTakenFromTheFileThatIsReplaced) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  TestSession mixed = At(2, 4);  // two new bases of three: too much for a delta
  const TestSession before = At(1, 1);
  mixed.layers[2].base = before.layers[2].base;
  mixed.layers[2].base_version = before.layers[2].base_version;
  TestSession partial = mixed;
  partial.layers[2].has_base = false;
  GDN_ASSERT_OK_AND_ASSIGN(const auto result, Store(kKey, partial));
  EXPECT_FALSE(result.incremental);
  ExpectLoads(*tier_, kKey, mixed);
  EXPECT_TRUE(Store(kKey, WithoutBases(mixed))->incremental);
  ExpectLoads(*tier_, kKey, mixed);
}

TEST_F(DiskTierTest, AnImageWithoutABaseThatItDoesNotKnowIsRefusedBeforeAnythingIsWritten) {
  EXPECT_EQ(Store(kKey, WithoutBases(At(1, 1))).status().code(), absl::StatusCode::kInvalidArgument);
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  EXPECT_EQ(Store(kKey, WithoutBases(At(2, 1))).status().code(), absl::StatusCode::kInvalidArgument);
  StateKey checkpoint = kKey;
  checkpoint.checkpoint = "c";
  EXPECT_EQ(Store(checkpoint, WithoutBases(At(1, 1))).status().code(), absl::StatusCode::kInvalidArgument);
  ExpectLoads(*tier_, kKey, At(1, 1));
  EXPECT_EQ(Files().size(), 1u);
}

TEST_F(DiskTierTest, CheckpointsLieBesideTheSession) {
  StateKey first = kKey, second = kKey;
  first.checkpoint = "a.safetensors";
  second.checkpoint = "..";
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  ASSERT_TRUE(Store(first, At(1, 2)).ok());
  ASSERT_TRUE(Store(second, At(1, 3)).ok());
  EXPECT_FALSE(Store(second, At(1, 4))->incremental);
  ExpectLoads(*tier_, kKey, At(1, 1));
  ExpectLoads(*tier_, first, At(1, 2));
  ExpectLoads(*tier_, second, At(1, 4));
  Open();
  EXPECT_EQ(tier_->usage().sessions, 1);
  ASSERT_TRUE(tier_->Erase(kKey, /*all=*/false).ok());
  EXPECT_TRUE(absl::IsNotFound(tier_->Load(kKey).status()));
  ExpectLoads(*tier_, first, At(1, 2));
  ASSERT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
  EXPECT_TRUE(absl::IsNotFound(tier_->Load(first).status()));
  EXPECT_THAT(Files(), IsEmpty());
  EXPECT_FALSE(fs::exists(path_ + "/sessions/ab12/s-chat-1"));
  EXPECT_EQ(tier_->usage().used_bytes, 0);
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/false).ok());
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
}

TEST_F(DiskTierTest, ListTellsWhatIsThereAndPassesOverWhatIsDamaged) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  ASSERT_TRUE(Store(kKey, At(1, 7)).ok());
  StateKey checkpoint = kKey;
  checkpoint.checkpoint = "c";
  ASSERT_TRUE(Store(checkpoint, At(1, 2)).ok());
  for (const char* id : {"bad", "foreign"}) {
    TestSession session = MakeModelSession();
    session.header.id = id;
    ASSERT_TRUE(Store({.principal = "ab12", .id = id, .checkpoint = ""}, session).ok());
  }
  const std::string sessions = path_ + "/sessions/ab12/";
  fs::resize_file(sessions + "s-bad/state.safetensors", 100);
  fs::rename(sessions + "s-foreign", sessions + "s-stolen");
  std::ofstream(sessions + "s-chat-1/state.safetensors.123.tmp") << "half";
  Open();
  GDN_ASSERT_OK_AND_ASSIGN(const auto list, tier_->List());
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ((list)[0].key, kKey);
  EXPECT_EQ((list)[0].header.id, "chat-1");
  EXPECT_EQ((list)[0].header.idle_ttl, absl::Seconds(90));
  ASSERT_EQ((list)[0].layers.size(), 3u);
  EXPECT_EQ((list)[0].layers[1], (std::pair<int32_t, SlotExtent>{2, {.token_count = 107, .log_length = 7}}));
  EXPECT_EQ((list)[0].kinds[1], InputKind::kHiddenStates);
  EXPECT_GT((list)[0].stored_at, absl::UnixEpoch());
  EXPECT_EQ((list)[1].key, checkpoint);
  EXPECT_EQ(tier_->usage().failures, 2);
  EXPECT_FALSE(fs::exists(sessions + "s-chat-1/state.safetensors.123.tmp"));
  const absl::Status stolen = tier_->Load({.principal = "ab12", .id = "stolen", .checkpoint = ""}).status();
  EXPECT_EQ(stolen.code(), absl::StatusCode::kDataLoss) << stolen;
  EXPECT_THAT(stolen.ToString(), Not(HasSubstr("foreign"))) << "whose it is, is not told";
}

TEST_F(DiskTierTest, WhatNoServerMadeIsPassedOverAndLeftAlone) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  const std::string sessions = path_ + "/sessions/";
  const std::vector<std::string> strays = {sessions + "README", sessions + "ab12/notes", sessions + "ab12/s-file"};
  for (const std::string& stray : strays) std::ofstream(stray) << "x";
  fs::create_directories(sessions + "not a principal/s-x");
  fs::create_directories(sessions + "ab12/s-not an id");
  fs::create_symlink("/nowhere", sessions + "cd34");
  Open();
  ASSERT_NE(tier_, nullptr);
  GDN_ASSERT_OK_AND_ASSIGN(const auto list, tier_->List());
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].key, kKey);
  for (const std::string& stray : strays) EXPECT_TRUE(fs::exists(stray)) << stray;
}

TEST_F(DiskTierTest, ADeltaToAnEarlierFileIsIgnored) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  ASSERT_TRUE(Store(kKey, At(1, 2)).ok());
  const std::string delta = path_ + "/sessions/ab12/s-chat-1/state.delta.safetensors";
  fs::copy_file(delta, folder_.path() + "/kept");
  ASSERT_TRUE(Store(kKey, At(2, 0)).ok());
  ASSERT_FALSE(fs::exists(delta));
  fs::copy_file(folder_.path() + "/kept", delta);  // as if the process had ended before it was removed
  ExpectLoads(*tier_, kKey, At(2, 0));
  Open();
  ExpectLoads(*tier_, kKey, At(2, 0));
  EXPECT_EQ(tier_->List()->size(), 1u);
  EXPECT_FALSE(fs::exists(delta));
  EXPECT_EQ(tier_->usage().used_bytes,
            static_cast<int64_t>(fs::file_size(path_ + "/sessions/ab12/s-chat-1/state.safetensors")));
}

TEST_F(DiskTierTest, TheBudgetCountsEverything) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  const int64_t one = tier_->usage().used_bytes;
  Open(2 * one + 64);  // a header's size follows its times' digits
  StateKey other = kKey, third = kKey;
  other.checkpoint = "c";
  third.id = "chat-2";
  ASSERT_TRUE(Store(other, At(1, 1)).ok());
  TestSession session = At(1, 1);
  session.header.id = "chat-2";
  const absl::Status full = Store(third, session).status();
  ExpectError(full, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_EQ(tier_->usage().failures, 0) << "what does not fit is an answer, as in every tier";
  EXPECT_EQ(Files().size(), 2u);
  EXPECT_TRUE(Store(kKey, At(2, 1)).ok()) << "what is replaced makes room";
  ASSERT_TRUE(tier_->Erase(other, /*all=*/false).ok());
  EXPECT_TRUE(Store(third, session).ok());
}

TEST_F(DiskTierTest, TwoServersCannotShareAFolder) {
  const auto second = DiskTier::Open({.directory = folder_.path() + "/./tier/"}, memory_.host);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(folder_.path() + "/tier"));
  tier_.reset();
  EXPECT_TRUE(DiskTier::Open({.directory = folder_.path() + "/./tier/"}, memory_.host).ok());
  std::ofstream(folder_.path() + "/file") << "x";
  EXPECT_FALSE(DiskTier::Open({.directory = folder_.path() + "/file"}, memory_.host).ok());
  EXPECT_FALSE(DiskTier::Open({.directory = ""}, memory_.host).ok());
}

TEST_F(DiskTierTest, TheCleanMarkerIsTakenOnce) {
  EXPECT_FALSE(tier_->TakeCleanMarker()->has_value());
  CleanMarker marker;
  marker.sessions[{.principal = "ab", .id = "x", .checkpoint = ""}] = {.tier = "redis", .version = {.changes = 7}};
  ASSERT_TRUE(tier_->WriteCleanMarker(marker).ok());
  Open();
  const auto taken = tier_->TakeCleanMarker();
  ASSERT_TRUE(taken.ok() && taken->has_value());
  EXPECT_EQ((*taken)->sessions.size(), 1);
  EXPECT_FALSE(tier_->TakeCleanMarker()->has_value());
}

TEST_F(DiskTierTest, AMarkerOfAnEarlierReleaseVouchesForNothingAndGoes) {
  WriteFile(path_ + "/clean", "7");
  const auto taken = tier_->TakeCleanMarker();
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_FALSE(taken->has_value());
  EXPECT_FALSE(fs::exists(path_ + "/clean"));
}

TEST_F(DiskTierTest, ASessionWhoseErasureWasCutShortIsGoneWithItsCheckpoints) {
  StateKey named = kKey;
  named.checkpoint = "kept";
  for (const StateKey& key : {kKey, named}) ASSERT_TRUE(Store(key, At(1, 1)).ok());
  fs::rename(path_ + "/sessions/ab12/s-chat-1", path_ + "/sessions/ab12/gone-chat-1");  // and then a SIGKILL
  Open();
  EXPECT_THAT(*tier_->List(), IsEmpty());
  EXPECT_THAT(Files(), IsEmpty()) << "their files are removed at the next start";
  ASSERT_TRUE(Store(kKey, At(2, 1)).ok());
  EXPECT_TRUE(absl::IsNotFound(tier_->Load(named).status())) << "a session of its name has no checkpoint of it";
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok());
  EXPECT_TRUE(tier_->Erase(kKey, /*all=*/true).ok()) << "again";
}

TEST_F(DiskTierTest, KeysThatAreNoNamesAreRefused) {
  for (const StateKey& key : {StateKey{"ab", "../x", ""}, StateKey{"../ab", "x", ""}, StateKey{"ab", "", ""},
                              StateKey{"ab", "x", "a/b"}, StateKey{"ab", std::string(129, 'x'), ""}}) {
    EXPECT_EQ(Store(key, At(1, 1)).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(tier_->Load(key).status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(tier_->Erase(key, /*all=*/true).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(DiskTierTest, AFileSizeLimitLeavesTheOldState) {
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  rlimit before;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit low = before;
  low.rlim_cur = 3000;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &low), 0);
  const absl::Status status = Store(kKey, At(2, 3)).status();
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  std::signal(SIGXFSZ, handler);
  ExpectError(status, absl::StatusCode::kUnavailable, reason::kTierUnavailable);
  EXPECT_EQ(ErrorMetadata(status)["tier"], "disk");
  ExpectLoads(*tier_, kKey, At(1, 1));
  EXPECT_EQ(Files().size(), 1u);
  EXPECT_TRUE(Store(kKey, At(2, 3)).ok());
  ExpectLoads(*tier_, kKey, At(2, 3));
}

TEST_F(DiskTierTest, AFullDiskLeavesTheOldState) {
  const std::string mounted = folder_.path() + "/small";
  fs::create_directory(mounted);
  if (mount("tmpfs", mounted.c_str(), "tmpfs", 0, "size=64k") != 0) {
    GTEST_SKIP() << "a file system cannot be mounted here: " << std::strerror(errno);
  }
  Open(mounted + "/tier", /*limit_bytes=*/0);
  ASSERT_TRUE(Store(kKey, At(1, 1)).ok());
  int stored = 0;
  absl::Status status;
  for (; stored < 100 && status.ok(); ++stored) {
    StateKey key = kKey;
    key.checkpoint = "c" + std::to_string(stored);
    status = Store(key, At(1, 1)).status();
  }
  ExpectError(status, absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted);
  EXPECT_EQ(Store(kKey, At(2, 2)).status().code(), absl::StatusCode::kResourceExhausted);
  ExpectLoads(*tier_, kKey, At(1, 1));
  EXPECT_EQ(tier_->List()->size(), static_cast<size_t>(stored));
  tier_.reset();
  EXPECT_EQ(umount2(mounted.c_str(), MNT_DETACH), 0);
}

TEST_F(DiskTierTest, NotesOfWhatIsToBeErasedOutliveTheProcess) {
  const StateKey a{.principal = "ab12", .id = "a.b~c", .checkpoint = {}};
  const StateKey b{.principal = "", .id = "b", .checkpoint = {}};
  EXPECT_THAT(*tier_->ErasureNotes(), ::testing::IsEmpty());
  ASSERT_TRUE(tier_->SetErasureNote(a, {"disk", "redis"}).ok());
  ASSERT_TRUE(tier_->SetErasureNote(b, {"redis"}).ok());
  ASSERT_TRUE(tier_->SetErasureNote(a, {"redis"}).ok());
  Open();
  EXPECT_THAT(*tier_->ErasureNotes(),
              ::testing::UnorderedElementsAre(::testing::Pair(a, ::testing::ElementsAre("redis")),
                                              ::testing::Pair(b, ::testing::ElementsAre("redis"))));
  ASSERT_TRUE(tier_->SetErasureNote(a, {}).ok());
  ASSERT_TRUE(tier_->SetErasureNote(a, {}).ok());
  Open();
  EXPECT_THAT(*tier_->ErasureNotes(), ::testing::ElementsAre(::testing::Pair(b, ::testing::ElementsAre("redis"))));
  EXPECT_TRUE(tier_->List()->empty());
}

}  // namespace
}  // namespace gdn::disk_tier_test
