// Invented principals leave no folders behind, neither while a server runs nor after one that was killed.
#include "state_store/tiers/disk/principal_folders.h"

#include <filesystem>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"

namespace gdn::principal_folders_test {
namespace {

namespace fs = std::filesystem;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class PrincipalFolderTest : public DiskTierFixture {
 protected:
  static TestSession SessionOf(const StateKey& key) {
    TestSession session = MakeOperatorSession();
    session.header.principal = key.principal;
    session.header.id = key.id;
    return session;
  }
  absl::Status Keep(const StateKey& key) { return Store(key, SessionOf(key)).status(); }
  std::set<std::string> FoldersIn(const std::string& name) const {
    std::set<std::string> found;
    for (const auto& entry : fs::directory_iterator(path_ + "/" + name)) found.insert(entry.path().filename());
    return found;
  }
};

TEST_F(PrincipalFolderTest, AFolderGoesWithTheLastSessionInIt) {
  for (const char* principal : {"", "ab12", "cd34"}) {
    for (const char* id : {"one", "two"}) ASSERT_TRUE(Keep({principal, id, ""}).ok());
  }
  ASSERT_TRUE(Keep({.principal = "ab12", .id = "one", .checkpoint = "named"}).ok());
  ASSERT_TRUE(tier_->Erase({"ab12", "one", ""}, /*all=*/true).ok());
  ASSERT_TRUE(tier_->Erase({"ab12", "two", ""}, /*all=*/false).ok());
  ASSERT_TRUE(tier_->Erase({"", "one", ""}, /*all=*/true).ok());
  EXPECT_THAT(FoldersIn("sessions"), UnorderedElementsAre("anonymous", "cd34"));
  const StateKey again{"ab12", "three", ""};
  ASSERT_TRUE(Keep(again).ok());
  ExpectLoads(*tier_, again, SessionOf(again));
}

TEST_F(PrincipalFolderTest, NotesOfErasuresLeaveNoneEither) {
  for (const char* principal : {"", "ab12"}) {
    const StateKey key{principal, "one", ""};
    ASSERT_TRUE(tier_->SetErasureNote(key, {"redis"}).ok());
    ASSERT_TRUE(tier_->SetErasureNote(key, {}).ok());
    ASSERT_TRUE(tier_->SetErasureNote({"ef", "never", ""}, {}).ok());
  }
  EXPECT_THAT(FoldersIn("owed"), IsEmpty());
}

TEST_F(PrincipalFolderTest, TheNextServerRemovesWhatAKilledOneLeft) {
  ASSERT_TRUE(Keep({"ab12", "one", ""}).ok());
  for (const char* left : {"/sessions/cd34", "/sessions/ef56/s-torn", "/owed/cd34"}) {
    fs::create_directories(path_ + left);
  }
  Open();
  EXPECT_THAT(*tier_->ErasureNotes(), IsEmpty());
  EXPECT_THAT(FoldersIn("sessions"), UnorderedElementsAre("ab12"));
  EXPECT_THAT(FoldersIn("owed"), IsEmpty());
}

TEST_F(PrincipalFolderTest, SessionsComeAndGoInOneFolderAtOnce) {
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, key = StateKey{"ab12", StrCat("s", thread), ""}] {
      for (int round = 0; round < 100; ++round) {
        const absl::Status stored = Keep(key);
        EXPECT_TRUE(stored.ok()) << stored;
        EXPECT_TRUE(tier_->Load(key).ok());
        const absl::Status note = tier_->SetErasureNote(key, {"disk"});
        EXPECT_TRUE(note.ok()) << note;
        const absl::Status erased = tier_->Erase(key, /*all=*/true);
        EXPECT_TRUE(erased.ok()) << erased;
        EXPECT_TRUE(tier_->SetErasureNote(key, {}).ok());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(FoldersIn("sessions"), IsEmpty());
  EXPECT_THAT(FoldersIn("owed"), IsEmpty());
}

}  // namespace
}  // namespace gdn::principal_folders_test
