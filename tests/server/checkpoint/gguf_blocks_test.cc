// The quantised blocks of GGUF files, compared with another implementation.
#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "server/checkpoint/gguf_file.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn::gguf_blocks_test {
namespace {

// Random blocks, and what the Python package gguf makes of them.
TEST(GgufBlocks, AreDecodedAsByAnotherImplementation) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto golden, SafetensorsFile::Open(GoldenFolder("gguf/ggml_blocks.safetensors")));
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_1, GgmlType::kQ5_0, GgmlType::kQ5_1,
                              GgmlType::kIQ4_NL, GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kQ4_K, GgmlType::kQ5_K,
                              GgmlType::kQ6_K, GgmlType::kIQ4_XS, GgmlType::kIQ3_S}) {
    ASSERT_TRUE(WeightFormatOf(type).has_value());
    const WeightFormat format = *WeightFormatOf(type);
    EXPECT_EQ(WeightFormatName(format), GgmlTypeName(type));
    GDN_ASSERT_OK_AND_ASSIGN(const auto blocks, golden.Bytes(GgmlTypeName(type) + ".blocks"));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected, golden.Floats(GgmlTypeName(type) + ".values"));
    const GgmlBlock block = *GgmlBlockOf(type);
    EXPECT_EQ(BlockOf(format).bytes, block.bytes);
    EXPECT_EQ(BlockOf(format).weights, block.elements);
    const int64_t count = static_cast<int64_t>(blocks.size()) / block.bytes;
    ASSERT_EQ(count * block.elements, static_cast<int64_t>(expected.size()));
    std::vector<float> values(expected.size());
    DequantizeBlocks(format, blocks.data(), count, values.data());
    EXPECT_EQ(values, expected) << GgmlTypeName(type);
  }
}

TEST(GgufBlocks, OtherTypesAreNotRead) {
  for (const GgmlType type :
       {GgmlType::kQ8_1, GgmlType::kQ8_K, GgmlType::kI8, GgmlType::kF64, static_cast<GgmlType>(19)}) {
    EXPECT_FALSE(WeightFormatOf(type).has_value()) << GgmlTypeName(type);
  }
}

}  // namespace
}  // namespace gdn::gguf_blocks_test
