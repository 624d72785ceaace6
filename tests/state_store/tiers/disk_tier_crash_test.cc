// After a crash, or on a bad disk, a load gives the old state, the new one, or DATA_LOSS.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/disk_tier_fixture.h"

namespace gdn::disk_tier_crash_test {
namespace {

namespace fs = std::filesystem;

const StateKey kKey{.principal = "", .id = "s", .checkpoint = ""};

class DiskTierCrash : public DiskTierFixture {
 protected:
  std::string Path(const std::string& name) const { return path_ + "/sessions/anonymous/s-s/" + name; }
  // Load gives this state or DATA_LOSS that names a tensor; says which.
  bool LoadsOrDataLoss(const TestSession& state, const std::string& what) {
    const auto image = tier_->Load(kKey);
    if (image.ok()) {
      EXPECT_TRUE(SameStates(TakeApart(**image), state)) << what;
      return true;
    }
    ExpectError(image.status(), absl::StatusCode::kDataLoss, reason::kInvalidStateFile, what);
    EXPECT_NE(ErrorMetadata(image.status())["tensor"], "") << what;
    return false;
  }
};

TEST_F(DiskTierCrash, TornFilesAreDataLoss) {
  ASSERT_TRUE(Store(kKey, MakeStep(2)).ok());
  ASSERT_TRUE(Store(kKey, MakeStep(5))->incremental);
  for (const char* name : {"state.safetensors", "state.delta.safetensors"}) {
    const std::string bytes = ReadFile(Path(name));
    const size_t header = *SafetensorsHeaderEnd(bytes);
    const auto expect_loss = [&](const std::string& torn, const std::string& what) {
      WriteFile(Path(name), torn);
      EXPECT_FALSE(LoadsOrDataLoss(MakeStep(5), what));
    };
    std::set<size_t> cuts = {0, 1, 7, 8, 9, header - 1, header, header + 1, bytes.size() - 1};
    for (size_t at = 4096; at < bytes.size(); at += 4096) cuts.insert(at);
    for (const size_t at : cuts) expect_loss(bytes.substr(0, at), std::string(name) + " cut at " + std::to_string(at));
    expect_loss(bytes + "x", "extended");
    Random random(3);
    for (int i = 0; i < 100; ++i) {
      std::string flipped = bytes;
      const size_t at = random.Next() % bytes.size();
      flipped[at] = static_cast<char>(flipped[at] ^ random.NextInt(1, 255));
      expect_loss(flipped, std::string(name) + " byte " + std::to_string(at));
    }
    WriteFile(Path(name), bytes);
    EXPECT_TRUE(LoadsOrDataLoss(MakeStep(5), "mended"));
  }
}

TEST_F(DiskTierCrash, AKilledStoreLeavesTheOldOrTheNewState) {
  constexpr int kRounds = 50;
  Random random(11);
  int64_t step = 0;
  ASSERT_TRUE(Store(kKey, MakeStep(step)).ok());
  int64_t moved = 0;
  for (int round = 0; round < kRounds; ++round) {
    tier_.reset();  // the child has the folder
    int pipe_fds[2];
    ASSERT_EQ(pipe(pipe_fds), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      // Tells each step before it is stored, and once it is.
      const auto tier = DiskTier::Open({.directory = path_, .max_draft = 8}, memory_.host);
      if (!tier.ok()) _exit(2);
      for (int64_t next = step + 1;; ++next) {
        const SessionImagePtr image = MakeImage(MakeStep(next), memory_.host);
        const int64_t begun = 2 * next, done = 2 * next + 1;
        if (write(pipe_fds[1], &begun, sizeof(begun)) != sizeof(begun)) _exit(3);
        if (!(*tier)->Store(kKey, image).ok()) _exit(4);
        if (write(pipe_fds[1], &done, sizeof(done)) != sizeof(done)) _exit(5);
      }
    }
    close(pipe_fds[1]);
    // Killed after some steps, and some time into one.
    const int wanted = random.NextInt(1, 12);
    int64_t word = 2 * step + 1;
    for (int i = 0; i < wanted; ++i) {
      ASSERT_EQ(read(pipe_fds[0], &word, sizeof(word)), static_cast<ssize_t>(sizeof(word)));
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random.NextInt(0, 3000)));
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself: " << WEXITSTATUS(status);
    int64_t last = word;
    while (read(pipe_fds[0], &word, sizeof(word)) == static_cast<ssize_t>(sizeof(word))) last = word;
    close(pipe_fds[0]);

    Open();
    ASSERT_EQ(tier_->List()->size(), 1u);
    const auto image = tier_->Load(kKey);
    ASSERT_TRUE(image.ok()) << "round " << round << ": " << image.status();
    const int64_t found = (*image)->header.epoch - 1;
    const int64_t acknowledged = last % 2 == 1 ? last / 2 : last / 2 - 1;
    ASSERT_GE(found, acknowledged) << "round " << round << " lost a state";
    ASSERT_LE(found, acknowledged + 1) << "round " << round;
    ASSERT_TRUE(SameStates(TakeApart(**image), MakeStep(found))) << "round " << round;
    for (const auto& file : fs::directory_iterator(Path(""))) {
      EXPECT_NE(file.path().extension(), ".tmp") << file.path();
    }
    moved += found - step;
    step = found;
  }
  EXPECT_GT(moved, kRounds / 2);
}

}  // namespace
}  // namespace gdn::disk_tier_crash_test
