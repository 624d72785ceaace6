// Deltas: what they leave out, and what they make with their full file.
#include "base/error.h"
#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"

namespace gdn::state_file_delta_test {
namespace {

class StateFileDelta : public ::testing::Test {
 protected:
  StateFileDelta() {
    for (size_t i = 0; i < before_.layers.size(); ++i) before_.layers[i].base_version = 100 + i;
    const auto file = EncodeStateFile(MakeImage(before_, memory_.host), {});
    full_ = FileBytes(*file);
    full_id_ = file->snapshot_id();
    // Later: layer 0 has a log and a draft, layer 2 another base, layer 11 an empty log again (its draft was dropped
    // and the log taken back), layer 5 is new.
    Random random(77);
    after_ = before_;
    after_.header.epoch = 4;
    const auto grow = [&random](TestLayer& layer, const SlotExtent& extent) {
      std::vector<float> base = std::move(layer.base);
      const BaseVersion version = layer.base_version;
      layer = MakeLayer(kModelDims, layer.layer, extent, random);
      layer.base = std::move(base);
      layer.base_version = version;
      layer.has_base = false;
    };
    grow(after_.layers[0], {.token_count = 43, .log_length = 6, .draft_length = 2});
    after_.layers[0].reply = MakeReply("again", RepliedBytes(kModelDims, 1));
    after_.layers[1] = MakeLayer(kModelDims, 2, {.token_count = 53}, random);
    after_.layers[1].base_version = 200;
    grow(after_.layers[2], {.token_count = int64_t{1} << 40});
    TestLayer fresh = MakeLayer(kModelDims, 5, {.token_count = 1, .log_length = 1}, random);
    fresh.base_version = 201;
    after_.layers.insert(after_.layers.begin() + 2, fresh);
    delta_ = Encode(after_, memory_.host, {.base_snapshot_id = full_id_});
  }

  TestSession Read(const StateFile& file) {
    return TakeApart(*ReadImage(file, StateLayout::Make(kModelDims, 8).value(), /*owner=*/nullptr));
  }

  TestMemory memory_;
  TestSession before_ = MakeModelSession();
  TestSession after_;
  std::string full_, full_id_, delta_;
};

TEST_F(StateFileDelta, LeavesOutOnlyTheBasesThatTheReaderHas) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(delta_));
  for (const char* absent : {"layer.0.base_state", "layer.0.recurrent_state", "layer.11.recurrent_state"}) {
    EXPECT_FALSE(file.Contains(absent)) << absent;
  }
  for (const char* there :
       {"layer.0.log_k", "layer.0.draft_conv_state", "layer.2.recurrent_state", "layer.5.base_state"}) {
    EXPECT_TRUE(file.Contains(there)) << there;
  }
  EXPECT_EQ(file.metadata().at("base_snapshot_id"), full_id_);
}

TEST_F(StateFileDelta, KnownBasesAreLeftOutToo) {
  TestSession whole = after_;
  for (TestLayer& layer : whole.layers) layer.has_base = true;
  const auto image = MakeImage(whole, memory_.host);
  const std::string delta = FileBytes(
      *EncodeStateFile(image, {.base_snapshot_id = full_id_, .known_bases = {{0, 100}, {2, 101}, {11, 102}}}));
  EXPECT_EQ(delta.size(), delta_.size());
  GDN_ASSERT_OK_AND_ASSIGN(const auto merged, MergeDelta(full_, delta));
  ExpectSame(Read(*ParseStateFile(merged)), whole);
}

TEST_F(StateFileDelta, MergedItIsAFullFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto merged, MergeDelta(full_, delta_));
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, ParseStateFile(merged));
  EXPECT_EQ(file.base_snapshot_id, "");
  EXPECT_NE(file.snapshot_id, full_id_);
  ExpectSame(Read(file), after_);
  const auto raw = SafetensorsFile::Parse(merged);
  EXPECT_TRUE(raw->Contains("layer.0.base_state"));
  EXPECT_TRUE(raw->Contains("layer.11.recurrent_state"));
  // It is as good a base for another delta as any.
  const std::string next = Encode(after_, memory_.host, {.base_snapshot_id = file.snapshot_id});
  EXPECT_TRUE(MergeDelta(merged, next).ok());
}

TEST_F(StateFileDelta, CompletedItIsReadWithoutACopy) {
  const auto full = ParseStateFile(full_);
  auto delta = ParseStateFile(delta_);
  ASSERT_TRUE(full.ok() && delta.ok()) << full.status() << delta.status();
  const absl::Status alone = ReadImage(*delta, StateLayout::Make(kModelDims, 8).value(), /*owner=*/nullptr).status();
  EXPECT_EQ(ErrorReason(alone), reason::kStateMismatch) << alone;
  ASSERT_TRUE(CompleteDelta(*full, *delta).ok());
  ExpectSame(Read(*delta), after_);
}

TEST_F(StateFileDelta, IsRefusedWithAnotherFullFile) {
  const std::string other = Encode(before_, memory_.host);
  for (const auto& [full, delta] : {std::pair{other, delta_}, std::pair{delta_, delta_}, std::pair{full_, full_}}) {
    const absl::Status status = MergeDelta(full, delta).status();
    ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);
  }
}

TEST_F(StateFileDelta, ABaseThatTheFullFileLacksIsNamed) {
  TestSession session = after_;
  session.layers[2].has_base = false;  // layer 5
  const std::string delta = Encode(session, memory_.host, {.base_snapshot_id = full_id_});
  const absl::Status status = MergeDelta(full_, delta).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorMetadata(status)["tensor"], "layer.5.base_state");
}

TEST_F(StateFileDelta, DamageInEitherIsFound) {
  for (const bool in_full : {true, false}) {
    std::string bytes = in_full ? full_ : delta_;
    bytes[bytes.size() - 5] ^= 1;
    const absl::Status status = in_full ? MergeDelta(bytes, delta_).status() : MergeDelta(full_, bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  }
}

}  // namespace
}  // namespace gdn::state_file_delta_test
