// Files of states whose bases are bfloat16: smaller, said so, and never taken for the other kind unasked.
#include <memory>
#include <string>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"

namespace gdn::state_file_dtype_test {
namespace {

class StateFileDtype : public ::testing::Test {
 protected:
  std::string FileOf(const TestSession& session, DType dtype, const StateFileOptions& options = {}) {
    return FileBytes(*EncodeStateFile(MakeImage(session, memory_.host, {.base_dtype = dtype}), options));
  }
  static absl::StatusOr<SessionImage> Read(const std::string& bytes, DType dtype, bool convert = false) {
    const auto owner = std::make_shared<const std::string>(bytes);
    GDN_ASSIGN_OR_RETURN(const StateFile file, ParseStateFile(*owner));
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(file.header.dims, 8, dtype));
    return ReadImage(file, layout, owner, convert);
  }

  TestMemory memory_;
  const TestSession session_ = MakeModelSession();
  const TestSession rounded_ = WithRoundedBases(session_);
};

TEST_F(StateFileDtype, ABf16BaseIsWrittenAsItIsAndReadAgain) {
  for (const bool transposed : {false, true}) {
    const TestImageOptions options{.transposed_base = transposed, .base_dtype = DType::kBF16};
    const std::string bytes = FileBytes(*EncodeStateFile(MakeImage(session_, memory_.host, options), {}));
    EXPECT_LT(bytes.size(), FileOf(session_, DType::kF32).size());
    GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(bytes));
    EXPECT_EQ(raw.metadata().at("format_version"), "3");
    EXPECT_EQ(raw.metadata().at("base_dtype"), "BF16");
    EXPECT_EQ(raw.entries().at("layer.0.recurrent_state").dtype, "BF16");
    EXPECT_EQ(raw.entries().at("layer.2.base_state").dtype, "BF16");
    EXPECT_EQ(raw.entries().at("layer.2.log_u").dtype, "F32");
    GDN_ASSERT_OK_AND_ASSIGN(const auto image, Read(bytes, DType::kBF16));
    EXPECT_EQ(image.layout.base_dtype(), DType::kBF16);
    ExpectSame(TakeApart(image), rounded_);
    ExpectSame(TakeApart(*MakeImage(TakeApart(image), memory_.host, options)), rounded_);
  }
}

TEST_F(StateFileDtype, AFloat32FileSaysNothingOfIt) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(FileOf(session_, DType::kF32)));
  EXPECT_EQ(raw.metadata().at("format_version"), "2");
  EXPECT_EQ(raw.metadata().count("base_dtype"), 0u);
}

TEST_F(StateFileDtype, TheOtherKindIsRefusedAndConvertedOnRequest) {
  for (const auto& [from, to, advice] : {std::tuple(DType::kF32, DType::kBF16, "--state-dtype=float32"),
                                         std::tuple(DType::kBF16, DType::kF32, "--state-dtype=bf16")}) {
    const std::string bytes = FileOf(session_, from);
    const absl::Status refused = Read(bytes, to).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(refused), reason::kStateMismatch);
    EXPECT_EQ(ErrorMetadata(refused).at("field"), "base_dtype");
    EXPECT_NE(refused.message().find(advice), std::string::npos) << refused;
    EXPECT_NE(refused.message().find("convert_state_dtype"), std::string::npos) << refused;
    const auto header = ParseStateFileHeader(bytes, static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(CheckStateDtype(*header, *StateLayout::Make(kModelDims, 8, to)), refused) << "its header is enough";

    GDN_ASSERT_OK_AND_ASSIGN(auto image, Read(bytes, to, /*convert=*/true));
    EXPECT_EQ(image.layout.base_dtype(), to);
    ExpectSame(TakeApart(image), rounded_);
    // The converted image is written again like any other, although it was never on a device.
    image.header.layers = session_.header.layers;
    const std::string again = FileBytes(*EncodeStateFile(std::make_shared<const SessionImage>(std::move(image)), {}));
    ExpectSame(TakeApart(*Read(again, to)), rounded_);
  }
}

TEST_F(StateFileDtype, ADeltaGoesWithAFullFileOfItsKind) {
  TestSession later = session_;
  for (TestLayer& layer : later.layers) layer.has_base = false;
  const std::string full = FileOf(session_, DType::kBF16);
  const std::string id = ParseStateFile(full)->snapshot_id;
  const std::string delta = FileOf(later, DType::kBF16, {.base_snapshot_id = id});
  GDN_ASSERT_OK_AND_ASSIGN(const auto merged, MergeDelta(full, delta));
  ExpectSame(TakeApart(*Read(merged, DType::kBF16)), rounded_);
  auto completed = ParseStateFile(delta);
  ASSERT_TRUE(CompleteDelta(*ParseStateFile(full), *completed).ok());
  const absl::Status other = MergeDelta(full, FileOf(later, DType::kF32, {.base_snapshot_id = id})).status();
  EXPECT_EQ(ErrorReason(other), reason::kStateMismatch);
  EXPECT_EQ(ErrorMetadata(other).at("field"), "base_dtype");
}

TEST_F(StateFileDtype, AFoldedStateBesideALogIsThatOfTheWidenedBase) {
  const StateFileOptions options{.include_recurrent_state = true};
  const std::string narrow_bytes = FileOf(session_, DType::kBF16, options);
  const std::string wide_bytes = FileOf(rounded_, DType::kF32, options);
  GDN_ASSERT_OK_AND_ASSIGN(const auto narrow, SafetensorsFile::Parse(narrow_bytes));
  GDN_ASSERT_OK_AND_ASSIGN(const auto wide, SafetensorsFile::Parse(wide_bytes));
  EXPECT_EQ(*narrow.Bytes("layer.2.recurrent_state"), *wide.Bytes("layer.2.recurrent_state"));
  EXPECT_EQ(narrow.entries().at("layer.2.recurrent_state").dtype, "F32");
}

}  // namespace
}  // namespace gdn::state_file_dtype_test
