// Files of states whose decays go by key channel: a version of their own, a log_g with a K axis.
#include <cmath>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/metadata.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"

namespace gdn::state_file_decay_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// MakeModelSession's, with a log decay for each key channel.
TestSession MakeChannelSession() {
  TestSession session = MakeModelSession();
  session.header.dims.decay = DecayKind::kPerChannel;
  Random random(3);
  for (TestLayer& layer : session.layers) {
    const StoredReplyPtr reply = layer.reply;
    layer = MakeLayer(session.header.dims, layer.layer, layer.extent, random);
    layer.reply = reply;
  }
  return session;
}

class StateFileDecay : public ::testing::Test {
 protected:
  std::string FileOf(const TestSession& session, DType dtype = DType::kF32, const StateFileOptions& options = {}) {
    return FileBytes(*EncodeStateFile(MakeImage(session, memory_.host, {.base_dtype = dtype}), options));
  }
  static absl::StatusOr<SessionImage> Read(const std::string& bytes, DType dtype = DType::kF32) {
    const auto owner = std::make_shared<const std::string>(bytes);
    GDN_ASSIGN_OR_RETURN(const StateFile file, ParseStateFile(*owner));
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(file.header.dims, 8, dtype));
    return ReadImage(file, layout, owner, /*convert_dtype=*/false);
  }
  // The file with other metadata, as version 1 has it.
  static std::string Rewritten(const std::string& bytes, const std::string& version, const std::string& dims) {
    const SafetensorsFile file = *SafetensorsFile::Parse(bytes);
    auto metadata = file.metadata();
    for (const char* key : {"checksums", "header_checksum", "snapshot_id"}) metadata.erase(key);
    metadata["format_version"] = version;
    metadata["dims"] = dims;
    std::vector<RawTensor> tensors;
    std::string data;
    for (const auto& [name, entry] : file.entries()) {
      tensors.push_back({.name = name, .dtype = entry.dtype, .shape = entry.shape, .data = *file.Bytes(name)});
      data += *file.Bytes(name);
    }
    return *SafetensorsHeader(tensors, metadata) + data;
  }

  // The file under another version of one digit, with the header's checksum made anew.
  static std::string Resealed(std::string bytes, const std::string& version) {
    const std::string key = R"("format_version":")", checksum = R"("header_checksum":")";
    bytes.replace(bytes.find(key) + key.size(), 1, version);
    const size_t digits = bytes.find(checksum) + checksum.size();
    bytes.replace(digits, 32, std::string(32, '0'));
    Hasher hasher;
    hasher.Update(std::string_view(bytes).substr(0, *SafetensorsHeaderEnd(bytes)));
    bytes.replace(digits, 32, hasher.Finish().ToHex());
    return bytes;
  }

  TestMemory memory_;
  const TestSession session_ = MakeChannelSession();
};

TEST_F(StateFileDecay, IsOfVersion4WithAKAxisAndReadAgain) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::string bytes = FileOf(session_, dtype);
    GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(bytes));
    EXPECT_EQ(raw.metadata().at("format_version"), "4");
    EXPECT_EQ(raw.metadata().count("base_dtype"), dtype == DType::kBF16 ? 1u : 0u);
    EXPECT_THAT(raw.metadata().at("dims"), HasSubstr(R"("decay":"per_channel")"));
    EXPECT_THAT(raw.entries().at("layer.2.log_g").shape, ElementsAre(4, kModelDims.value_heads, kModelDims.key_dim));
    GDN_ASSERT_OK_AND_ASSIGN(const auto image, Read(bytes, dtype));
    EXPECT_TRUE(image.layout.dims().decays_by_channel());
    ExpectSame(TakeApart(image), dtype == DType::kBF16 ? WithRoundedBases(session_) : session_);
  }
}

TEST_F(StateFileDecay, OfADecayAHeadIsOfTheVersionsBefore) {
  const TestSession by_head = MakeModelSession();
  GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(FileOf(by_head)));
  EXPECT_EQ(raw.metadata().at("format_version"), "2");
  EXPECT_EQ(raw.metadata().at("dims").find("decay"), std::string::npos);
  GDN_ASSERT_OK_AND_ASSIGN(const auto narrow, SafetensorsFile::Parse(FileOf(by_head, DType::kBF16)));
  EXPECT_EQ(narrow.metadata().at("format_version"), "3");
}

TEST_F(StateFileDecay, ADeltaGoesWithAFullFileOfItsKindAlone) {
  TestSession later = session_;
  for (TestLayer& layer : later.layers) layer.has_base = false;
  const std::string full = FileOf(session_);
  const std::string id = ParseStateFile(full)->snapshot_id;
  GDN_ASSERT_OK_AND_ASSIGN(const auto merged, MergeDelta(full, FileOf(later, DType::kF32, {.base_snapshot_id = id})));
  ExpectSame(TakeApart(*Read(merged)), session_);
  GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(merged));
  EXPECT_EQ(raw.metadata().at("format_version"), "4");
  TestSession by_head = MakeModelSession();
  for (TestLayer& layer : by_head.layers) layer.has_base = false;
  const absl::Status other = MergeDelta(full, FileOf(by_head, DType::kF32, {.base_snapshot_id = id})).status();
  EXPECT_EQ(ErrorReason(other), reason::kStateMismatch);
  EXPECT_EQ(ErrorMetadata(other).at("field"), "dims");
}

TEST_F(StateFileDecay, ALayoutOfTheOtherKindRefusesIt) {
  const auto owner = std::make_shared<const std::string>(FileOf(session_));
  GDN_ASSERT_OK_AND_ASSIGN(const StateFile file, ParseStateFile(*owner));
  const absl::Status status =
      ReadImage(file, *StateLayout::Make(kModelDims, 8), owner, /*convert_dtype=*/false).status();
  EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("decay=per-channel"));
}

TEST_F(StateFileDecay, TheStateBesideALogIsFoldedByChannel) {
  const std::string bytes = FileOf(session_, DType::kF32, {.include_recurrent_state = true});
  GDN_ASSERT_OK_AND_ASSIGN(const auto raw, SafetensorsFile::Parse(bytes));
  GDN_ASSERT_OK_AND_ASSIGN(const std::vector<float> folded, raw.Floats("layer.2.recurrent_state"));
  const TestLayer& layer = session_.layers[1];
  const LayerDims& dims = session_.header.dims;
  for (int32_t hv = 0; hv < dims.value_heads; ++hv) {
    for (int32_t c = 0; c < dims.key_dim; ++c) {
      double s = layer.base[(hv * dims.key_dim + c) * dims.value_dim];
      for (int32_t e = 0; e < layer.extent.log_length; ++e) {
        s *= std::exp(double{layer.log_g[(e * dims.value_heads + hv) * dims.key_dim + c]});
        s += double{layer.log_k[(e * dims.key_heads + hv / dims.group()) * dims.key_dim + c]} *
             layer.log_u[(e * dims.value_heads + hv) * dims.value_dim];
      }
      EXPECT_NEAR(folded[(hv * dims.key_dim + c) * dims.value_dim], s, 1e-5);
    }
  }
}

TEST_F(StateFileDecay, VersionsAndDimsThatDisagreeAreRefused) {
  const std::string bytes = FileOf(session_);
  const std::string by_channel = state_file::DimsText(session_.header.dims);
  const std::string by_head = state_file::DimsText(kModelDims);
  EXPECT_EQ(ParseStateFile(Rewritten(bytes, "1", by_channel)).status(), absl::OkStatus()) << "of another tool";
  std::string other = by_channel;
  other.replace(other.find("per_channel"), 11, "per_moments");
  EXPECT_THAT(std::string(ParseStateFile(Rewritten(bytes, "1", other)).status().message()), HasSubstr("per_channel"));
  // A log_g of [n, HV, K] where the dims say [n, HV].
  EXPECT_THAT(std::string(ParseStateFile(Rewritten(bytes, "1", by_head)).status().message()), HasSubstr("log_g"));
  // Sealed under a version that does not go with its dims.
  const std::string of_heads = FileOf(MakeModelSession());
  for (const auto& [file, version] : {std::pair(&bytes, "2"), std::pair(&bytes, "3"), std::pair(&of_heads, "4")}) {
    const absl::Status status = ParseStateFile(Resealed(*file, version)).status();
    EXPECT_THAT(std::string(status.message()), HasSubstr("'format_version'")) << version;
  }
  EXPECT_EQ(ParseStateFile(Resealed(bytes, "4")).status(), absl::OkStatus());
}

}  // namespace
}  // namespace gdn::state_file_decay_test
