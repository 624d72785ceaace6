#include "server/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_folder.h"

namespace gdn::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

constexpr char kGolden[] = GDN_SOURCE_DIR "/tests/golden/";
constexpr char kPointer[] =
    "version https://git-lfs.github.com/spec/v1\noid "
    "sha256:4665a5ea423c2713d436b5ee50593a9640e0018c1550b5a0002f74190d6c\n"
    "size 3949\n";

class CheckpointTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  static std::string MessageOf(const std::string& path) { return std::string(OpenCheckpoint(path).status().message()); }

  const TempFolder folder_;
};

TEST_F(CheckpointTest, AGgufFileMayHaveAnyName) {
  fs::create_symlink(std::string(kGolden) + "gguf_qwen35_1/f32.gguf", Path("sha256-af1c"));
  const absl::StatusOr<Checkpoint> checkpoint = OpenCheckpoint(Path("sha256-af1c"));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_FALSE(checkpoint->layers.empty());
}

TEST_F(CheckpointTest, SaysWhatWasExpectedInPlaceOfWhatIsThere) {
  WriteFile(Path("model.safetensors"), "anything");
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  const std::string expected = "expected a Hugging Face checkpoint folder with its config.json, or a GGUF file";
  EXPECT_THAT(MessageOf(Path("none")), HasSubstr("none' is not there; " + expected));
  EXPECT_THAT(MessageOf(Path("model.safetensors")), HasSubstr("is a file that is not in GGUF; " + expected));
  EXPECT_THAT(MessageOf(Path("pipe")), HasSubstr("pipe' is not a regular file"));
  EXPECT_THAT(MessageOf(folder_.path()), HasSubstr("config.json': No such file or directory"));
}

TEST_F(CheckpointTest, ALfsPointerIsNamedAsOne) {
  WriteFile(Path("model.gguf"), kPointer);
  WriteFile(Path("other name"), kPointer);
  fs::create_directory(Path("folder"));
  fs::copy_file(std::string(kGolden) + "qwen3_next_1/config.json", Path("folder/config.json"));
  WriteFile(Path("folder/model.safetensors"), kPointer);
  for (const std::string name : {"model.gguf", "other name", "folder"}) {
    EXPECT_THAT(MessageOf(Path(name)), HasSubstr("run 'git lfs pull'")) << name;
    EXPECT_THAT(MessageOf(Path(name)), HasSubstr(name)) << name;
  }
}

}  // namespace
}  // namespace gdn::checkpoint_test
