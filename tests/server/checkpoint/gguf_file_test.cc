#include "server/checkpoint/gguf_file.h"

#include "base/error.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/temp_folder.h"

namespace gdn::gguf_file_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

GgufWriter Small() {
  GgufWriter writer;
  writer.Text("general.architecture", "qwen35");
  writer.Texts("tokenizer.ggml.tokens", {"a", "", "word"});
  writer.Int("qwen35.block_count", 4);
  writer.Float("qwen35.eps", 1e-6f);
  writer.Bools("qwen35.linear", {true, false, true});
  writer.Tensor("a", {2, 3}, GgmlType::kF32, std::string(24, 'a'));
  writer.Tensor("b", {2, 32}, GgmlType::kQ8_0, std::string(68, 'b'));
  writer.Tensor("unknown", {5}, static_cast<GgmlType>(99), std::string(7, 'u'));
  return writer;
}

absl::Status Refusal(const std::string& bytes) { return GgufFile::Parse(bytes).status(); }

TEST(GgufFile, ReadsKeysAndTensors) {
  for (const uint32_t version : {2u, 3u}) {
    const std::string bytes = Small().Bytes(version);
    GDN_ASSERT_OK_AND_ASSIGN(const auto file, GgufFile::Parse(bytes));
    EXPECT_EQ(*file.Text("general.architecture"), "qwen35");
    EXPECT_EQ(*file.Int("qwen35.block_count"), 4);
    EXPECT_EQ(*file.Float("qwen35.eps"), static_cast<double>(1e-6f));
    EXPECT_THAT(*file.Bools("qwen35.linear"), ElementsAre(true, false, true));
    EXPECT_THAT(file.tensors().at("a").shape, ElementsAre(2, 3));
    EXPECT_EQ(file.tensors().at("a").data, std::string(24, 'a'));
    EXPECT_EQ(file.tensors().at("b").type, GgmlType::kQ8_0);
    EXPECT_EQ(file.tensors().at("b").data, std::string(68, 'b'));
    EXPECT_EQ(file.tensors().at("unknown").data, "");  // of a size that is not known
  }
}

TEST(GgufFile, KeysAreRefusedByName) {
  const std::string bytes = Small().Bytes();
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, GgufFile::Parse(bytes));
  EXPECT_EQ(file.Int("qwen35.missing").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(file.Int("qwen35.missing").status().message()), HasSubstr("'qwen35.missing'"));
  EXPECT_THAT(std::string(file.Int("general.architecture").status().message()), HasSubstr("is not an integer"));
  EXPECT_EQ(file.Float("qwen35.block_count").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.Text("qwen35.eps").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(file.Bools("tokenizer.ggml.tokens").status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GgufFile, AFileThatIsCutAnywhereIsRefused) {
  GgufWriter writer;
  writer.Text("general.architecture", "qwen35");
  writer.Bools("linear", {true});
  writer.Tensor("t", {1, 32}, GgmlType::kQ8_0, std::string(34, 'x'));
  const std::string whole = writer.Bytes();
  const size_t end = whole.find(std::string(34, 'x')) + 34;  // what follows is padding
  for (size_t size = 0; size < end; ++size) {
    EXPECT_EQ(Refusal(whole.substr(0, size)).code(), absl::StatusCode::kDataLoss) << size;
  }
  EXPECT_EQ(Refusal(whole.substr(0, end)), absl::OkStatus());
}

TEST(GgufFile, InconsistentFilesAreRefusedWithAReason) {
  struct Case {
    std::string what;
    std::function<std::string()> make;
    std::string message;
  };
  const auto with = [](const std::function<void(GgufWriter&)>& change) {
    GgufWriter writer;
    change(writer);
    return writer.Bytes();
  };
  // The 8 bytes of `name`'s offset, which follow its type.
  const auto with_offset = [](std::string bytes, const std::string& name, uint64_t offset) {
    const size_t at = bytes.find(name) + name.size() + 4 + 8 + 4;
    return bytes.replace(at, 8, reinterpret_cast<const char*>(&offset), 8);
  };
  const auto two = [&] {
    return with([](GgufWriter& w) {
      w.Tensor("first", {16}, GgmlType::kF32, std::string(64, '1'));
      w.Tensor("other", {16}, GgmlType::kF32, std::string(64, '2'));
    });
  };
  const Case cases[] = {
      {"something else", [] { return std::string("PK\3\4 a zip file"); }, "does not begin with 'GGUF'"},
      {"another version", [] { return Small().Bytes(1); }, "version 1"},
      {"the other byte order", [] { return Small().Bytes(0x03000000); }, "little-endian"},
      {"a key twice",
       [&] {
         return with([](GgufWriter& w) {
           w.Int("k", 1);
           w.Int("k", 2);
         });
       },
       "key 'k' is there twice"},
      {"a tensor twice",
       [&] {
         return with([](GgufWriter& w) {
           w.Tensor("t", {1}, GgmlType::kF32, "1234");
           w.Tensor("t", {1}, GgmlType::kF32, "1234");
         });
       },
       "tensor 't' is there twice"},
      {"rows that are no blocks",
       [&] { return with([](GgufWriter& w) {
               w.Tensor("t", {2, 48}, GgmlType::kQ8_0, std::string(102, 'x'));
             }); },
       "not whole blocks of 32"},
      {"five dimensions",
       [&] { return with([](GgufWriter& w) {
               w.Tensor("t", {1, 1, 1, 1, 1}, GgmlType::kF32, "1234");
             }); },
       "has 5 dimensions"},
      {"a shape that overflows",
       [&] {
         return with([](GgufWriter& w) {
           w.Tensor("t", {int64_t{1} << 40, int64_t{1} << 40}, GgmlType::kF32, "1234");
         });
       },
       "has shape"},
      {"tensors that overlap", [&] { return with_offset(two(), "other", 32); }, "'other' overlaps"},
      {"a tensor beyond the end", [&] { return with_offset(two(), "other", 96); }, "'other' has bytes [96, 160)"},
      {"a tensor far beyond the end", [&] { return with_offset(two(), "other", ~uint64_t{31}); }, "'other' has bytes"},
      {"a tensor that is not aligned", [&] { return with_offset(two(), "other", 68); }, "no multiple of 32"},
      {"an alignment of 0", [&] { return with([](GgufWriter& w) { w.Int("general.alignment", 0); }); },
       "general.alignment"},
  };
  for (const Case& c : cases) {
    const absl::Status status = Refusal(c.make());
    EXPECT_FALSE(status.ok()) << c.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.what;
  }
}

class SplitFile : public ::testing::Test {
 protected:
  void Write(int number, int parts, const std::function<void(GgufWriter&)>& change, int its_number = -1) {
    GgufWriter writer;
    writer.Int("split.no", static_cast<uint32_t>(its_number < 0 ? number - 1 : its_number));
    writer.Int("split.count", static_cast<uint32_t>(parts));
    change(writer);
    WriteFile(Path(number, parts), writer.Bytes());
  }
  std::string Path(int number, int parts) const {
    return StrCat(folder_.path(), "/m-0000", number, "-of-0000", parts, ".gguf");
  }
  TempFolder folder_;
};

TEST_F(SplitFile, PartsAreJoined) {
  Write(1, 2, [](GgufWriter& w) {
    w.Text("general.architecture", "qwen35");
    w.Int("split.tensors.count", 2);
    w.Tensor("a", {1}, GgmlType::kF32, "aaaa");
  });
  Write(2, 2, [](GgufWriter& w) { w.Tensor("b", {1}, GgmlType::kF32, "bbbb"); });
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, GgufFile::Open(Path(1, 2)));
  EXPECT_EQ(*file.Text("general.architecture"), "qwen35");
  EXPECT_EQ(file.tensors().at("a").data, "aaaa");
  EXPECT_EQ(file.tensors().at("b").data, "bbbb");
}

TEST_F(SplitFile, PartsThatDoNotFitAreRefused) {
  const auto a = [](GgufWriter& w) { w.Tensor("a", {1}, GgmlType::kF32, "aaaa"); };
  const auto b = [](GgufWriter& w) { w.Tensor("b", {1}, GgmlType::kF32, "bbbb"); };
  Write(1, 2, a);
  EXPECT_EQ(GgufFile::Open(Path(1, 2)).status().code(), absl::StatusCode::kNotFound);  // no second part
  Write(2, 2, a);
  EXPECT_THAT(std::string(GgufFile::Open(Path(1, 2)).status().message()), HasSubstr("in another part too"));
  Write(2, 2, b, /*its_number=*/0);
  EXPECT_THAT(std::string(GgufFile::Open(Path(1, 2)).status().message()), HasSubstr("part 1 of 2"));
  Write(2, 2, b);
  EXPECT_TRUE(GgufFile::Open(Path(1, 2)).ok()) << GgufFile::Open(Path(1, 2)).status();
  EXPECT_THAT(std::string(GgufFile::Open(Path(2, 2)).status().message()),
              AllOf(HasSubstr("expected the first part"), HasSubstr("-00001-of-00002.gguf")));
  Write(1, 2, [&](GgufWriter& w) {
    a(w);
    w.Int("split.tensors.count", 5);
  });
  EXPECT_THAT(std::string(GgufFile::Open(Path(1, 2)).status().message()), HasSubstr("the first says 5"));
}

}  // namespace
}  // namespace gdn::gguf_file_test
