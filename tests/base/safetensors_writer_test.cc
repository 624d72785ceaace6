// Writing safetensors files: what is written reads back the same, and what is refused.
#include <cstring>

#include "base/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

TEST(SafetensorsWriter, WhatItWritesReadsBackTheSame) {
  const std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const std::string half("\x00\x3c\x00\xc0", 4);
  const std::map<std::string, std::string> metadata = {{"format", "gdn"}, {"quote\"d", "line\nbreak \xc3\xa9"}};
  const auto bytes = SerializeSafetensors(
      {{"z/x", {DType::kF32, {2, 3}, Bytes(x)}}, {"half", {DType::kF16, {2}, half}}, {"none", {DType::kBF16, {0}, ""}}},
      metadata);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(*bytes));
  EXPECT_EQ(file.metadata(), metadata);
  EXPECT_EQ(*file.Floats("z/x", {{2, 3}}), x);
  EXPECT_THAT(*file.Floats("half"), ElementsAre(1.0f, -2.0f));
  EXPECT_TRUE(file.Floats("none")->empty());
  EXPECT_EQ(file.entries().at("z/x").begin, 0u);  // the given order, not the names'
}

TEST(SafetensorsWriter, DataBeginsAligned) {
  for (int length = 1; length < 20; ++length) {
    const auto bytes =
        SerializeSafetensors({{std::string(static_cast<size_t>(length), 'n'), {DType::kF32, {0}, ""}}}, {});
    ASSERT_TRUE(bytes.ok());
    uint64_t header;
    std::memcpy(&header, bytes->data(), sizeof(header));
    EXPECT_EQ(header % 8, 0u);
    EXPECT_EQ(bytes->size(), 8 + header);
  }
}

TEST(SafetensorsWriter, WritesAnEmptyFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto bytes, SerializeSafetensors({}, {}));
  EXPECT_EQ(bytes.substr(8), "{}      ");
}

TEST(SafetensorsWriter, RefusesWhatCannotBeReadBack) {
  const std::string four = "0123";
  const TensorView good{DType::kF32, {1}, four};
  const std::vector<std::vector<NamedTensor>> cases = {
      {{"x", good}, {"x", good}},         {{"__metadata__", good}},
      {{"x", {DType::kF32, {2}, four}}},  {{"x", {DType::kF16, {1}, four}}},
      {{"x", {DType::kF32, {-1}, four}}}, {{"x", {DType::kF32, {int64_t{1} << 62, 4}, four}}},
      {{"not \xff utf-8", good}},
  };
  for (const auto& tensors : cases) {
    EXPECT_EQ(SerializeSafetensors(tensors, {}).status().code(), absl::StatusCode::kInvalidArgument)
        << tensors.front().name;
  }
  EXPECT_EQ(SerializeSafetensors({}, {{"a", "\xff"}}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(SerializeSafetensors({{"x", {DType::kF32, {2}, four}}}, {}).status().message()),
              HasSubstr("needs 8"));
}

}  // namespace
}  // namespace gdn
