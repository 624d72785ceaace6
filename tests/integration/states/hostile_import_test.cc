// State files that were made to do harm, imported beside another principal, whose bytes fill all memory that is used
// again. Nobody's bytes reach anybody else, no answer is wrong, and nothing stays that is not counted.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "state_store/state_file/parse.h"
#include "tests/integration/support/hostile_import_fixture.h"
#include "tests/integration/support/poisoned_memory.h"
#include "tests/support/state_file_changes.h"
#include "tests/support/temp_folder.h"

namespace gdn::hostile_import_test {
namespace {

TEST_F(HostileImport, AFileWithOneFieldChangedAnswersAsItSaysOrIsRefused) {
  std::vector<std::vector<Answers>> runs;
  int imported = 0;
  std::string file;
  for (const char byte : {kPoison, kOtherPoison}) {
    const PoisonedMemory poison(byte);
    Start();
    if (file.empty()) {
      MakeSession(*alice_, "a");
      const auto exported = alice_->Export("a");
      ASSERT_TRUE(exported.ok());
      file = exported.reply;
      ASSERT_TRUE(alice_->Delete("a").ok());
    }
    const StateFileChanges changes(file);
    LeaveBobsBytes(file, byte);
    std::vector<Answers>& run = runs.emplace_back();
    const Answers unchanged = Import(*mallory_, changes.Unchanged(), byte);
    ASSERT_TRUE(unchanged.imported) << unchanged.later;
    for (size_t i = 0; i < changes.size(); ++i) {
      const std::string& name = changes.Name(i);
      const std::string changed = changes.File(i);
      // A file that is refused answers nothing that memory could show in; one run of it is enough.
      const bool is_second_run = runs.size() > 1;
      if (is_second_run && !runs.front()[i].imported) {
        run.push_back(runs.front()[i]);
        continue;
      }
      if (ParseStateFile(changed).ok()) LeaveBobsBytes(file, byte);
      const Answers& answers = run.emplace_back(Import(*mallory_, changed, byte));
      EXPECT_LT(answers.imported ? 0 : answers.later.size(), 4000u) << name << ": more than gRPC sends with an error";
      if (answers.imported) {
        ++imported;
        ExpectRetriesOf(changed, answers, unchanged, name);
        const bool is_label = changes.What(i) == StateFileChanges::Of::kLabel;
        EXPECT_TRUE(!is_label || answers == unchanged) << name;
        EXPECT_TRUE(is_second_run || Import(*alice_, changed, byte) == answers) << name << ": as another principal";
      }
      if (HasFailure()) break;
    }
    EXPECT_TRUE(WaitUntil([&] { return HeldNow() == Held{}; }, "what imports held to be given back"));
  }
  ASSERT_EQ(runs.front().size(), runs.back().size());
  const StateFileChanges changes(file);
  for (size_t i = 0; i < runs.front().size(); ++i) {
    EXPECT_TRUE(runs.front()[i] == runs.back()[i]) << changes.Name(i) << ": its answers follow from what memory held";
  }
  RecordProperty("changes", static_cast<int>(changes.size()));
  RecordProperty("imported", imported);
}

// The names, ids and texts of a file, as long as an import takes them.
TEST_F(HostileImport, NothingStaysOfAFileThatIsNotCounted) {
  Start();
  MakeSession(*alice_, "a");
  const auto exported = alice_->Export("a");
  ASSERT_TRUE(exported.ok());
  constexpr int kSessions = 12;
  constexpr int64_t kLong = 200'000;
  // At most half of the texts' bytes may stay; calls and sessions themselves take some.
  constexpr int64_t kMost = kLong * kSessions / 2;
  const auto in_use = [] {
    const struct mallinfo2 info = mallinfo2();
    return static_cast<int64_t>(info.uordblks + info.hblkhd);
  };
  // Bytes that stay allocated while sessions of the file are there; 0 if the file is refused.
  const auto kept_of = [&](const std::string& file) {
    v1::ImportStateRequest target, data;
    data.set_data(file);
    const int64_t before = in_use();
    for (int i = 0; i < kSessions; ++i) {
      *target.mutable_target() = TargetOf(absl::StrCat("m", i));
      if (!mallory_->Import({target, data}).ok()) return int64_t{0};
    }
    int64_t bytes = in_use() - before;
    for (int wait = 0; bytes > kMost && wait < 500; ++wait) {  // messages are freed behind the replies
      absl::SleepFor(absl::Milliseconds(10));
      bytes = in_use() - before;
    }
    for (int i = 0; i < kSessions; ++i) EXPECT_TRUE(mallory_->Delete(absl::StrCat("m", i)).ok());
    return bytes;
  };
  const StateFileChanges changes(exported.reply, kLong);
  kept_of(changes.Unchanged());  // and what the first imports allocate for good
  int texts = 0;
  for (size_t i = 0; i < changes.size(); ++i) {
    if (!changes.IsLong(i)) continue;
    ++texts;
    // Memory that other threads hold for a moment is not there again the next time; what an import keeps is.
    int64_t kept = kept_of(changes.File(i));
    for (int again = 0; kept > kMost && again < 3; ++again) kept = std::min(kept, kept_of(changes.File(i)));
    EXPECT_LE(kept, kMost) << changes.Name(i);
  }
  EXPECT_GT(texts, 20);
}

// The same of a file on the disk, which somebody has changed while the session rested there.
TEST_F(HostileImport, AFileThatWasChangedOnTheDiskAnswersAsTheSessionDidOrIsRefused) {
  const TempFolder folder;
  std::vector<std::map<size_t, Answers>> runs;  // by change: a name holds times, which differ from run to run
  std::map<size_t, std::string> names;
  for (const char byte : {kPoison, kOtherPoison}) {
    const PoisonedMemory poison(byte);
    Start(folder.path());
    std::map<size_t, Answers>& run = runs.emplace_back();
    MakeSession(*alice_, "a");
    const auto exported = alice_->Export("a");
    ASSERT_TRUE(exported.ok());
    // A session that rests on the disk, as the file that `change` makes of its own.
    const auto rest = [&](const std::function<std::string(const StateFileChanges&)>& change) {
      ASSERT_TRUE(mallory_->Import(TargetOf("x"), exported.reply).ok());
      const auto evicted = mallory_->Evict("x", v1::STATE_TIER_DISK);
      ASSERT_TRUE(evicted.ok()) << evicted.status.error_message();
      const std::vector<std::string> paths = FilesBelow(folder, "s-x/state.safetensors");
      ASSERT_EQ(paths.size(), 1u);
      WriteFile(paths[0], change(StateFileChanges(ReadFile(paths[0]))));
    };
    size_t count = 0;
    rest([&](const StateFileChanges& changes) {
      count = changes.size();
      return changes.Unchanged();
    });
    const Answers unchanged = AnswersOf(*mallory_, "x", byte);
    ASSERT_NE(unchanged.retries.find("retry of layer 2: ok "), std::string::npos) << unchanged.retries;
    ASSERT_TRUE(mallory_->Delete("x").ok());
    // Every seventh: files are synced. Which they are differs from field to field.
    for (size_t i = 0; i < count; i += 7) {
      std::string name, changed;
      bool is_label = false;
      LeaveBobsBytes(exported.reply, byte);
      rest([&](const StateFileChanges& changes) {
        name = changes.Name(i);
        is_label = changes.What(i) == StateFileChanges::Of::kLabel;
        return changed = changes.File(i);
      });
      names[i] = name;
      const Answers& answers = run[i] = AnswersOf(*mallory_, "x", byte);
      ExpectRetriesOf(changed, answers, unchanged, name);
      const bool refused = answers.retries.find(": ok ") == std::string::npos;
      EXPECT_TRUE(!is_label || refused || answers == unchanged) << name;
      EXPECT_TRUE(mallory_->Delete("x").ok()) << name;
      if (HasFailure()) break;
    }
    ASSERT_TRUE(alice_->Delete("a").ok());
  }
  for (const auto& [change, answers] : runs.front()) {
    if (answers.retries.find(": ok ") == std::string::npos) continue;  // refused, with texts of this very file
    EXPECT_TRUE(answers.retries == runs.back()[change].retries)
        << names[change] << ": its answers follow from what memory held";
  }
}

}  // namespace
}  // namespace gdn::hostile_import_test
