#include "server/checkpoint/checkpoint_files.h"

#include <filesystem>

#include "base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::checkpoint_files_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TestCheckpoint Three() {
  TestCheckpoint checkpoint;
  checkpoint.tensors = {{"a", TestTensor::Filled(DType::kF32, {2}, 1.0f)},
                        {"b", TestTensor::Filled(DType::kF32, {1}, 2.0f)},
                        {"c", TestTensor::Filled(DType::kBF16, {1}, 3.0f)}};
  return checkpoint;
}

std::string Message(const absl::Status& status) { return std::string(status.message()); }

TEST(CheckpointFiles, ReadsASingleFile) {
  TempFolder folder;
  Three().Write(folder.path());
  GDN_ASSERT_OK_AND_ASSIGN(auto files, CheckpointFiles::Open(folder.path()));
  EXPECT_EQ(files.tensors().size(), 3u);
  EXPECT_THAT(files.Tensor("a")->shape, ElementsAre(2));
  EXPECT_EQ(files.ReleaseFiles().size(), 1u);
}

TEST(CheckpointFiles, OpensOnlyTheShardsThatAreAskedFor) {
  TempFolder folder;
  Three().WriteSharded(folder.path(), 3);
  WriteFile(folder.path() + "/model-2.safetensors", "damaged");
  GDN_ASSERT_OK_AND_ASSIGN(auto files, CheckpointFiles::Open(folder.path()));
  EXPECT_TRUE(files.Contains("c"));
  EXPECT_TRUE(files.Tensor("b").ok());
  EXPECT_TRUE(files.Tensor("b").ok());
  EXPECT_EQ(files.ReleaseFiles().size(), 1u);
}

TEST(CheckpointFiles, ViewsOutliveTheReleaseOfTheFiles) {
  TempFolder folder;
  Three().WriteSharded(folder.path(), 2);
  GDN_ASSERT_OK_AND_ASSIGN(auto files, CheckpointFiles::Open(folder.path()));
  const StoredTensor view = *files.Tensor("c");
  const std::map<std::string, SafetensorsFile> released = files.ReleaseFiles();
  EXPECT_EQ(view.data, "\x40\x40");
}

TEST(CheckpointFiles, PrefersTheSingleFileAsTransformersDoes) {
  TempFolder folder;
  Three().WriteSharded(folder.path(), 2);
  TestCheckpoint single = Three();
  single.tensors.erase("c");
  single.Write(folder.path());
  EXPECT_FALSE(CheckpointFiles::Open(folder.path())->Contains("c"));
}

TEST(CheckpointFiles, ErrorsNameFolderFileAndTensor) {
  TempFolder folder;
  const absl::Status empty = CheckpointFiles::Open(folder.path()).status();
  EXPECT_EQ(empty.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(empty), HasSubstr(folder.path()));
  EXPECT_THAT(Message(empty), HasSubstr("model.safetensors.index.json"));

  Three().WriteSharded(folder.path(), 3);
  std::filesystem::remove(folder.path() + "/model-1.safetensors");
  WriteFile(folder.path() + "/model-2.safetensors", ReadFile(folder.path() + "/model-0.safetensors"));
  GDN_ASSERT_OK_AND_ASSIGN(auto files, CheckpointFiles::Open(folder.path()));
  const absl::Status unknown = files.Tensor("missing").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(unknown), HasSubstr("'missing'"));
  const absl::Status no_shard = files.Tensor("b").status();
  EXPECT_EQ(no_shard.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(no_shard), HasSubstr("'b'"));
  EXPECT_THAT(Message(no_shard), HasSubstr("model-1.safetensors"));
  const absl::Status not_in_shard = files.Tensor("c").status();
  EXPECT_EQ(not_in_shard.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(not_in_shard), HasSubstr("'c'"));
  EXPECT_THAT(Message(not_in_shard), HasSubstr("model-2.safetensors"));
}

TEST(CheckpointFiles, ACutFileIsDataLoss) {
  TempFolder folder;
  Three().Write(folder.path());
  const std::string path = folder.path() + "/model.safetensors";
  const std::string bytes = ReadFile(path);
  WriteFile(path, bytes.substr(0, bytes.size() - 1));
  const absl::Status status = CheckpointFiles::Open(folder.path()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(Message(status), HasSubstr(path));
}

TEST(CheckpointFiles, AnIndexCannotLeadOutOfTheFolder) {
  for (const char* shard : {"\"../x.safetensors\"", "\"/etc/passwd\"", "\"a/b\"", "\"\"", "\".\"", "\"..\"", "7",
                            "\"a\\u0000b\"", "null"}) {
    TempFolder folder;
    WriteFile(folder.path() + "/model.safetensors.index.json", std::string("{\"weight_map\":{\"a\":") + shard + "}}");
    const absl::Status status = CheckpointFiles::Open(folder.path()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << shard;
    EXPECT_THAT(Message(status), HasSubstr("tensor 'a'")) << shard;
  }
}

TEST(CheckpointFiles, RefusesWhatIsNotAnIndex) {
  for (const char* text : {"", "[]", "{}", "{\"weight_map\":[]}", "{\"weight_map\":"}) {
    TempFolder folder;
    WriteFile(folder.path() + "/model.safetensors.index.json", text);
    const absl::Status status = CheckpointFiles::Open(folder.path()).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, text);
    EXPECT_THAT(Message(status), HasSubstr("weight_map")) << text;
  }
}

}  // namespace
}  // namespace gdn::checkpoint_files_test
