// Matrices that compressed-tensors and ModelOpt have packed have the weights of their formats' formulas.
#include "server/checkpoint/packed_tensors.h"

#include <cmath>

#include "base/string_cat.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/packed_matrix.h"
#include "tests/support/assert_ok.h"

namespace gdn::packed_tensors_test {
namespace {

constexpr double kTwoRoundings = 2.0 / (1 << 24);  // of float32, relative

// The weights, and the format that they are kept in.
void ExpectWeights(const PackedMatrix& packed, WeightFormat format, double tolerance) {
  const auto read = ReadBack(packed.checkpoint);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->encoding, format) << WeightFormatName(read->encoding);
  EXPECT_EQ(read->widened, format == WeightFormat::kF32);
  for (size_t i = 0; i < packed.expected.size(); ++i) {
    ASSERT_NEAR(read->values[i], packed.expected[i], tolerance * std::abs(packed.expected[i])) << i;
  }
}

// A scale of eight or eleven bits times a weight of at most eight is a float32.
constexpr double kExact = 0.0;

TEST(PackedTensors, Fp8WithOneScaleStaysFp8) {
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{}, {1}, {1, 1}}) {
    PackedMatrix packed;
    packed.Fp8(shape, DType::kF32);
    ExpectWeights(packed, WeightFormat::kF8E4M3, kTwoRoundings);
  }
}

TEST(PackedTensors, Fp8WithAScaleARowIsWidened) {
  PackedMatrix bf16, f32, flat;
  bf16.Fp8({bf16.rows, 1}, DType::kBF16);
  ExpectWeights(bf16, WeightFormat::kF32, kExact);
  f32.Fp8({f32.rows, 1}, DType::kF32);
  ExpectWeights(f32, WeightFormat::kF32, kTwoRoundings);
  flat.Fp8({flat.rows}, DType::kBF16);
  ExpectWeights(flat, WeightFormat::kF32, kExact);
}

TEST(PackedTensors, Fp8WithBlockScalesUnderTheOtherNameIsReadAsItLies) {
  TestCheckpoint checkpoint = TestCheckpoint::Golden("fp8_qwen3_5_1");
  GDN_ASSERT_OK_AND_ASSIGN(const ReadMatrix expected, ReadBack(checkpoint));
  TestTensor scales = checkpoint.tensors.at(StrCat(kPackedModule, ".weight_scale_inv"));
  checkpoint.tensors.erase(StrCat(kPackedModule, ".weight_scale_inv"));
  checkpoint.tensors[StrCat(kPackedModule, ".weight_scale")] = std::move(scales);
  checkpoint.config.erase("quantization_config");
  GDN_ASSERT_OK_AND_ASSIGN(const ReadMatrix read, ReadBack(checkpoint));
  EXPECT_EQ(read.encoding, WeightFormat::kF8E4M3);
  EXPECT_FALSE(read.packed);
  EXPECT_EQ(read.values, expected.values);
}

TEST(PackedTensors, Int8IsQ8WhereItsScalesAreHalvesAndElseWidened) {
  PackedMatrix bf16, f32;
  bf16.Int8(DType::kBF16);
  ExpectWeights(bf16, WeightFormat::kQ8_0, kExact);
  f32.Int8(DType::kF32);
  ExpectWeights(f32, WeightFormat::kF32, kTwoRoundings);
}

TEST(PackedTensors, Int4IsQ4OrWithZeroPointsQ8WhereGroupsAreWholeBlocks) {
  PackedMatrix symmetric, rows, asymmetric, small, precise;
  symmetric.Int4(32, /*symmetric=*/true, DType::kBF16);
  ExpectWeights(symmetric, WeightFormat::kQ4_0, kExact);
  rows.Int4(rows.cols, /*symmetric=*/true, DType::kF16);
  ExpectWeights(rows, WeightFormat::kQ4_0, kExact);
  asymmetric.Int4(64, /*symmetric=*/false, DType::kBF16);
  ExpectWeights(asymmetric, WeightFormat::kQ8_0, kExact);
  small.Int4(16, /*symmetric=*/false, DType::kBF16);
  ExpectWeights(small, WeightFormat::kF32, kExact);
  precise.Int4(32, /*symmetric=*/true, DType::kF32);
  ExpectWeights(precise, WeightFormat::kF32, kTwoRoundings);
}

TEST(PackedTensors, Nvfp4OfBothKindsIsWidened) {
  for (const bool modelopt : {false, true}) {
    PackedMatrix packed;
    packed.Nvfp4(modelopt);
    ExpectWeights(packed, WeightFormat::kF32, kTwoRoundings);
    packed.checkpoint.config.erase("quantization_config");  // seen at the tensors
    ExpectWeights(packed, WeightFormat::kF32, kTwoRoundings);
  }
}

}  // namespace
}  // namespace gdn::packed_tensors_test
