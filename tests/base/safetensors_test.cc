#include "base/files/safetensors.h"

#include <cstring>

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::safetensors_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::string File(const std::string& header, const std::string& data) {
  const uint64_t size = header.size();
  std::string file(sizeof(size), '\0');
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header + data;
}

// The header of one tensor, "x".
std::string HeaderOf(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return StrCat(R"({"x":{"dtype":")", dtype, R"(","shape":)", shape, R"(,"data_offsets":)", offsets, "}}");
}

std::string Floats(const std::vector<float>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
}

// Two float tensors, an integer one and an empty one.
std::string Small() {
  return File(R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
              R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]},)"
              R"("none":{"dtype":"F32","shape":[0,3],"data_offsets":[12,12]},)"
              R"("ids":{"dtype":"I64","shape":[1],"data_offsets":[12,20]}} )",
              std::string("\x80\x3f\x00\xc0", 4) + Floats({0.5f, -3.0f}) + std::string("\x07\0\0\0\0\0\0\0", 8));
}

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string bytes = Small();
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(bytes));
  EXPECT_THAT(file.metadata(), ElementsAre(Pair("format", "pt")));
  EXPECT_EQ(file.entries().size(), 4u);
  EXPECT_EQ(file.entries().at("ids").dtype, "I64");
  EXPECT_TRUE(file.Contains("none"));
  EXPECT_FALSE(file.Contains("__metadata__"));

  EXPECT_THAT(*file.Floats("a"), ElementsAre(1.0f, -2.0f));
  EXPECT_THAT(*file.Floats("b", {{2, 1}}), ElementsAre(0.5f, -3.0f));
  EXPECT_THAT(*file.Floats("b", {{-1, 1}}), ElementsAre(0.5f, -3.0f));
  EXPECT_TRUE(file.Floats("none")->empty());
  GDN_ASSERT_OK_AND_ASSIGN(const auto view, file.Tensor("b"));
  EXPECT_THAT(view.shape, ElementsAre(2, 1));
  EXPECT_EQ(view.data.data(), bytes.data() + bytes.size() - 16);
}

TEST(Safetensors, LookupErrorsNameTheTensor) {
  const std::string bytes = Small();
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(bytes));
  EXPECT_EQ(file.Tensor("missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.Tensor("missing").status().message()), HasSubstr("'missing'"));
  EXPECT_EQ(ErrorReason(file.Tensor("ids").status()), reason::kInvalidTensorDtype);
  for (const std::vector<int64_t>& shape : {std::vector<int64_t>{2}, {1, 2}, {2, 1, 1}, {}}) {
    const auto values = file.Floats("b", shape);
    ExpectError(values.status(), absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape);
    EXPECT_THAT(std::string(values.status().message()), HasSubstr("[2, 1]"));
  }
}

TEST(Safetensors, AFileWithoutTensorsIsValid) {
  const std::string bytes = File("{}", "");
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(bytes));
  EXPECT_TRUE(file.entries().empty());
}

TEST(Safetensors, SubByteTypesAreMeasuredInBits) {
  EXPECT_TRUE(SafetensorsFile::Parse(File(HeaderOf("F4", "[6]", "[0,3]"), "abc")).ok());
  EXPECT_FALSE(SafetensorsFile::Parse(File(HeaderOf("F4", "[5]", "[0,3]"), "abc")).ok());
}

// A reader that goes over what it has read at each tensor would take hours.
TEST(Safetensors, ReadsAHeaderOfManyTensorsInOnePass) {
  constexpr int kTensors = 300'000;
  std::string header = "{";
  for (int i = 0; i < kTensors; ++i) {
    header += (i > 0 ? ",\"" : "\"") + std::to_string(i) + R"(":{"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  }
  const std::string bytes = File(header + "}", "");
  const auto file = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->entries().size(), size_t{kTensors});
}

TEST(Safetensors, RefusesDamagedHeaders) {
  struct Case {
    std::string what;
    std::string header;
    std::string data;
    std::string message;
  };
  const std::string four = "0123";
  const Case cases[] = {
      {"not an object", "[]", "", "begin with '{'"},
      {"leading space", " {}", "", "begin with '{'"},
      {"empty", "", "", "begin with '{'"},
      {"cut JSON", R"({"x":)", "", "JSON"},
      {"trailing text", "{}x", "", "JSON"},
      {"not UTF-8", "{\"\xff\":1}", "", "JSON"},
      {"duplicate tensor",
       R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
       four, "'x' twice"},
      {"duplicate field", R"({"x":{"dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4]}})", four,
       "'dtype' twice"},
      {"duplicate metadata", R"({"__metadata__":{"a":"1","a":"2"}})", "", "'a' twice"},
      {"deep nesting", HeaderOf("F32", "[[1]]", "[0,4]"), four, "non-negative"},
      {"metadata number", R"({"__metadata__":{"a":1}})", "", "'a' is not a string"},
      {"metadata text", R"({"__metadata__":"a"})", "", "not an object"},
      {"tensor is text", R"({"x":"y"})", "", "does not consist"},
      {"missing field", R"({"x":{"dtype":"F32","shape":[1]}})", four, "does not consist"},
      {"another field", R"({"x":{"dtype":"F32","shape":[1],"data_offsets":[0,4],"y":1}})", four, "does not consist"},
      {"dtype number", R"({"x":{"dtype":5,"shape":[1],"data_offsets":[0,4]}})", four, "not a string"},
      {"unknown dtype", HeaderOf("Q4", "[1]", "[0,4]"), four, "unknown dtype 'Q4'"},
      {"shape text", HeaderOf("F32", R"("1")", "[0,4]"), four, "not an array"},
      {"negative dim", HeaderOf("F32", "[-1]", "[0,4]"), four, "non-negative"},
      {"fractional dim", HeaderOf("F32", "[1.0]", "[0,4]"), four, "non-negative"},
      {"huge dim", HeaderOf("F32", "[18446744073709551615]", "[0,4]"), four, "non-negative"},
      {"dim beyond integers", HeaderOf("F32", "[1e40]", "[0,4]"), four, "non-negative"},
      {"shape overflow", HeaderOf("F32", "[4294967296,4294967296]", "[0,4]"), four, "too large"},
      {"size overflow", HeaderOf("F32", "[4611686018427387905]", "[0,4]"), four, "too large"},
      {"three offsets", HeaderOf("F32", "[1]", "[0,4,8]"), four, "two non-negative"},
      {"negative offset", HeaderOf("F32", "[1]", "[-4,0]"), four, "two non-negative"},
      {"offsets reversed", HeaderOf("F32", "[1]", "[4,0]"), four, "before it begins"},
      {"size mismatch", HeaderOf("F32", "[2]", "[0,4]"), four, "needs 8"},
      {"beyond the end", HeaderOf("F32", "[2]", "[0,8]"), four, "ends at byte 8"},
      {"offset wraps", HeaderOf("F32", "[1]", "[18446744073709551612,18446744073709551615]"), four, "needs 4"},
      {"hole at the start", HeaderOf("U8", "[2]", "[2,4]"), four, "begins at byte 2"},
      {"hole between",
       R"({"x":{"dtype":"U8","shape":[1],"data_offsets":[0,1]},"y":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       four, "begins at byte 2"},
      {"overlap",
       R"({"x":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"y":{"dtype":"U8","shape":[2],"data_offsets":[2,4]}})",
       four, "inside the tensor before it"},
      {"uncovered end", HeaderOf("U8", "[2]", "[0,2]"), four, "end at byte 2"},
  };
  for (const Case& c : cases) {
    const std::string bytes = File(c.header, c.data);
    const auto file = SafetensorsFile::Parse(bytes);
    ASSERT_FALSE(file.ok()) << c.what;
    ExpectError(file.status(), absl::StatusCode::kDataLoss, reason::kInvalidStateFile, c.what);
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(c.message)) << c.what;
  }
}

TEST(Safetensors, RefusesHeaderLengthsBeyondTheFile) {
  for (const uint64_t length : {uint64_t{3}, uint64_t{1} << 20, uint64_t{100'000'001}, ~uint64_t{0}, ~uint64_t{7}}) {
    std::string bytes = File("{}", "");
    std::memcpy(bytes.data(), &length, sizeof(length));
    const auto file = SafetensorsFile::Parse(bytes);
    ASSERT_FALSE(file.ok()) << length;
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(StrCat(length)));
  }
}

TEST(Safetensors, AHostilyNestedHeaderIsStoppedEarly) {
  const std::string bytes = File("{\"x\":" + std::string(5'000'000, '['), "");
  EXPECT_EQ(SafetensorsFile::Parse(bytes).status().code(), absl::StatusCode::kDataLoss);
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string bytes = Small();
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);  // its own allocation, so that a sanitizer sees a read past it
    EXPECT_EQ(SafetensorsFile::Parse(cut).status().code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_FALSE(SafetensorsFile::Parse(bytes + "x").ok());
}

TEST(Safetensors, EveryBitFlipInTheHeaderIsRefusedOrReadSafely) {
  const std::string bytes = Small();
  const size_t header_end = bytes.size() - 20;
  int refused = 0;
  for (size_t bit = 0; bit < header_end * 8; ++bit) {
    std::string flipped = bytes;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ (1 << bit % 8));
    const auto file = SafetensorsFile::Parse(flipped);
    if (!file.ok()) {
      EXPECT_EQ(file.status().code(), absl::StatusCode::kDataLoss);
      ++refused;
      continue;
    }
    // A changed name, metadata text or same-sized dtype: everything that is listed can still be read.
    for (const auto& [name, entry] : file->entries()) {
      const auto values = file->Floats(name);
      EXPECT_TRUE(values.ok() || ErrorReason(values.status()) == reason::kInvalidTensorDtype);
    }
  }
  EXPECT_GT(refused, static_cast<int>(header_end) * 4);
}

TEST(Safetensors, OpenNamesThePathInItsErrors) {
  const TempFolder folder;
  const std::string good = folder.path() + "/good.safetensors";
  const std::string bad = folder.path() + "/bad.safetensors";
  const std::string bytes = Small();
  WriteFile(good, bytes);
  WriteFile(bad, bytes.substr(0, bytes.size() - 1));

  GDN_ASSERT_OK_AND_ASSIGN(auto file, SafetensorsFile::Open(good));
  SafetensorsFile moved = std::move(file);  // the mapping moves along
  EXPECT_THAT(*moved.Floats("b"), ElementsAre(0.5f, -3.0f));

  const auto damaged = SafetensorsFile::Open(bad);
  ExpectError(damaged.status(), absl::StatusCode::kDataLoss, reason::kInvalidStateFile);
  EXPECT_THAT(std::string(damaged.status().message()), HasSubstr(bad));
  EXPECT_EQ(SafetensorsFile::Open(folder.path() + "/missing").status().code(), absl::StatusCode::kNotFound);
}

TEST(SafetensorsWriter, WhatItWritesReadsBackTheSame) {
  const std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f};
  const std::string x_bytes = Floats(x);
  const std::string half("\x00\x3c\x00\xc0", 4);
  const std::map<std::string, std::string> metadata = {{"format", "gdn"}, {"quote\"d", "line\nbreak \xc3\xa9"}};
  GDN_ASSERT_OK_AND_ASSIGN(const auto bytes, SerializeSafetensors({{"z/x", {DType::kF32, {2, 3}, x_bytes}},
                                                                   {"half", {DType::kF16, {2}, half}},
                                                                   {"none", {DType::kBF16, {0}, ""}}},
                                                                  metadata));
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(bytes));
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
}  // namespace gdn::safetensors_test
