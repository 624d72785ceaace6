#include "server/checkpoint/gguf_blocks.h"

#include "base/safetensors.h"
#include "gtest/gtest.h"
#include "tests/server/checkpoint/test_checkpoint.h"
#include "tests/support/assert_ok.h"

namespace gdn {
namespace {

// Random blocks, and what the Python package gguf makes of them.
TEST(GgufBlocks, AreDecodedAsByAnotherImplementation) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto golden, SafetensorsFile::Open(GoldenFolder("gguf/ggml_blocks.safetensors")));
  for (const GgmlType type : {GgmlType::kQ8_0, GgmlType::kQ4_0, GgmlType::kQ4_K, GgmlType::kQ5_K, GgmlType::kQ6_K}) {
    ASSERT_TRUE(DecodesGgml(type));
    GDN_ASSERT_OK_AND_ASSIGN(const auto blocks, golden.Bytes(GgmlTypeName(type) + ".blocks"));
    GDN_ASSERT_OK_AND_ASSIGN(const auto expected, golden.Floats(GgmlTypeName(type) + ".values"));
    const GgmlBlock block = *GgmlBlockOf(type);
    ASSERT_EQ(static_cast<int64_t>(blocks.size()) / block.bytes * block.elements,
              static_cast<int64_t>(expected.size()));
    std::vector<float> values(expected.size());
    DecodeGgml(type, blocks, values.data());
    EXPECT_EQ(values, expected) << GgmlTypeName(type);
  }
}

TEST(GgufBlocks, OtherTypesAreNotDecoded) {
  for (const GgmlType type :
       {GgmlType::kQ4_1, GgmlType::kQ2_K, GgmlType::kQ3_K, GgmlType::kI8, GgmlType::kF64, static_cast<GgmlType>(19)}) {
    EXPECT_FALSE(DecodesGgml(type)) << GgmlTypeName(type);
  }
}

}  // namespace
}  // namespace gdn
