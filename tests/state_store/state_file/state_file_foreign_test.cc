// State files as other tools write them, and files that are inconsistent in themselves.
#include <cstring>
#include <functional>
#include <map>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/compare.h"

namespace gdn::state_file_foreign_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// A state file taken apart, to be changed and put together again as version 1, which has no checksums.
struct Parts {
  explicit Parts(const std::string& bytes) {
    const auto file = SafetensorsFile::Parse(bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    metadata = file->metadata();
    metadata["format_version"] = "1";
    for (const char* key : {"checksums", "header_checksum", "snapshot_id"}) metadata.erase(key);
    for (const auto& [name, entry] : file->entries()) {
      tensors[name] = {entry.dtype, entry.shape, std::string(*file->Bytes(name))};
    }
  }

  std::string Bytes() const {
    std::vector<RawTensor> raw;
    std::string data;
    for (const auto& [name, tensor] : tensors) {
      raw.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape, .data = tensor.data});
      data += tensor.data;
    }
    const auto header = SafetensorsHeader(raw, metadata);
    EXPECT_TRUE(header.ok()) << header.status();
    return *header + data;
  }

  void Erase(const std::string& name) { ASSERT_EQ(tensors.erase(name), 1u) << name; }
  void Put(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    const std::vector<float> values(static_cast<size_t>(count), 0.5f);
    tensors[name] = {"F32", std::move(shape),
                     std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float))};
  }

  struct Tensor {
    std::string dtype;
    std::vector<int64_t> shape;
    std::string data;
  };
  std::map<std::string, std::string> metadata;
  std::map<std::string, Tensor> tensors;
};

using Change = std::function<void(Parts&)>;
Change Set(std::string key, std::string text) {
  return [=](Parts& parts) { parts.metadata[key] = text; };
}
Change Without(std::string key) {
  return [=](Parts& parts) { parts.metadata.erase(key); };
}
Change Put(std::string tensor, std::vector<int64_t> shape) {
  return [=](Parts& parts) { parts.Put(tensor, shape); };
}
Change Erase(std::string tensor) {
  return [=](Parts& parts) { parts.Erase(tensor); };
}

class ForeignStateFile : public ::testing::Test {
 protected:
  TestSession Read(const std::string& bytes) {
    const auto file = ParseStateFile(bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    const auto image = ReadImage(*file, StateLayout::Make(file->header.dims, 8).value(), /*owner=*/nullptr);
    EXPECT_TRUE(image.ok()) << image.status();
    return TakeApart(*image);
  }

  TestMemory memory_;
  const TestSession session_ = MakeModelSession();
  const std::string bytes_ = Encode(session_, memory_.host, {.include_recurrent_state = true});
};

TEST_F(ForeignStateFile, VersionOneWithoutChecksumsIsRead) { ExpectSame(Read(Parts(bytes_).Bytes()), session_); }

TEST_F(ForeignStateFile, AFileOfAnotherToolNeedsOnlyStateAndTokenCount) {
  Parts parts(bytes_);
  std::erase_if(parts.tensors, [](const auto& tensor) { return !tensor.first.starts_with("layer.0."); });
  std::erase_if(parts.metadata, [](const auto& entry) {
    return entry.first != "format" && entry.first != "format_version" && entry.first != "dims" &&
           entry.first != "layer_count";
  });
  parts.metadata["layer.0"] = R"({"token_count": 37})";
  const TestSession read = Read(parts.Bytes());
  ASSERT_EQ(read.layers.size(), 1u);
  EXPECT_EQ(read.layers[0].extent, (SlotExtent{.token_count = 37}));
  EXPECT_EQ(read.layers[0].kind, InputKind::kNone);
  EXPECT_EQ(read.header.epoch, 1);
  EXPECT_TRUE(BitEqual(read.layers[0].base, session_.layers[0].base));
  EXPECT_TRUE(BitEqual(read.layers[0].conv, session_.layers[0].conv));
}

TEST_F(ForeignStateFile, AHeaderOfAnyLengthIsRead) {
  const std::string plain = Parts(bytes_).Bytes();
  for (uint64_t spaces = 0; spaces < 8; ++spaces) {  // other writers do not align the data
    uint64_t length;
    std::memcpy(&length, plain.data(), sizeof(length));
    std::string shifted = plain;
    shifted.insert(8 + length, spaces, ' ');
    length += spaces;
    std::memcpy(shifted.data(), &length, sizeof(length));
    ExpectSame(Read(shifted), session_);
  }
}

TEST_F(ForeignStateFile, HalfPrecisionStatesAreRead) {
  Parts parts(bytes_);
  Parts::Tensor& state = parts.tensors.at("layer.0.recurrent_state");
  std::vector<float> expected;
  std::string narrow(session_.layers[0].base.size() * 2, '\0');
  ConvertFromFloat(session_.layers[0].base.data(), session_.layers[0].base.size(), DType::kBF16, narrow.data());
  for (const float x : session_.layers[0].base) expected.push_back(BF16ToFloat(FloatToBF16(x)));
  state.dtype = "BF16";
  state.data = narrow;
  EXPECT_TRUE(BitEqual(Read(parts.Bytes()).layers[0].base, expected));
}

TEST_F(ForeignStateFile, ALogOfAnotherCapacityIsReplacedByTheMaterialisedState) {
  Parts parts(bytes_);
  parts.metadata["log_capacity"] = "32";
  std::map<int32_t, std::vector<float>> states;
  for (const int32_t layer : {2, 11}) {
    const std::string data = parts.tensors.at("layer." + std::to_string(layer) + ".recurrent_state").data;
    states[layer].resize(data.size() / sizeof(float));
    std::memcpy(states[layer].data(), data.data(), data.size());
  }
  const TestSession read = Read(parts.Bytes());
  EXPECT_EQ(read.layers[1].extent, (SlotExtent{.token_count = 41}));
  EXPECT_TRUE(read.layers[1].log_u.empty());
  EXPECT_TRUE(BitEqual(read.layers[1].base, states[2]));
  EXPECT_TRUE(BitEqual(read.layers[1].conv, session_.layers[1].conv));
  // A draft after the log stays.
  EXPECT_EQ(read.layers[2].extent, (SlotExtent{.token_count = int64_t{1} << 40, .draft_length = 3}));
  EXPECT_TRUE(BitEqual(read.layers[2].base, states[11]));
  const std::vector<float>& log_u = session_.layers[2].log_u;
  EXPECT_TRUE(BitEqual(read.layers[2].log_u, absl::MakeSpan(log_u).subspan(15 * kModelDims.value_features())));
  EXPECT_TRUE(BitEqual(read.layers[2].draft_conv, session_.layers[2].draft_conv));

  parts.Erase("layer.2.recurrent_state");
  const absl::Status status = ParseStateFile(parts.Bytes()).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("32"), HasSubstr("recurrent_state")));
}

TEST_F(ForeignStateFile, ALogThatShouldHaveBeenFoldedIsRefused) {
  Parts parts(bytes_);
  parts.metadata["layer.2"] = R"({"token_count":41,"log_length":16})";
  parts.Erase("layer.2.reply");
  parts.Put("layer.2.log_k", {16, 2, 6});
  parts.Put("layer.2.log_u", {16, 4, 5});
  parts.Put("layer.2.log_g", {16, 4});
  const absl::Status status = ParseStateFile(parts.Bytes()).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);
  EXPECT_THAT(std::string(status.message()), HasSubstr("log_length"));
}

TEST_F(ForeignStateFile, ChecksumsOfVersionOneAreVerifiedWhereTheyAre) {
  Parts parts(bytes_);
  parts.metadata["checksums"] = R"({"layer.0.conv_state":"00000000000000000000000000000000"})";
  const absl::Status status = ParseStateFile(parts.Bytes()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorMetadata(status)["tensor"], "layer.0.conv_state");
}

TEST_F(ForeignStateFile, VersionTwoMustHaveAllChecksums) {
  const std::map<std::string, std::string> original = SafetensorsFile::Parse(bytes_)->metadata();
  for (const char* missing : {"checksums", "header_checksum"}) {
    Parts parts(bytes_);
    parts.metadata = original;
    parts.metadata.erase(missing);
    const absl::Status status = ParseStateFile(parts.Bytes()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << missing;
    EXPECT_EQ(ErrorMetadata(status)["tensor"], "header") << missing;
  }
}

TEST_F(ForeignStateFile, RefusesInconsistentFilesByName) {
  struct Case {
    std::string what;
    Change change;
    std::string message;
  };
  const Case cases[] = {
      {"no metadata at all", [](Parts& p) { p.metadata.clear(); }, "no 'format'"},
      {"no format", Without("format"), "no 'format'"},
      {"foreign format", Set("format", "pt"), "'pt'"},
      {"no version", Without("format_version"), "no 'format_version'"},
      {"newer version", Set("format_version", "6"), "expected 1 to 5"},
      {"a dtype of bases in a version without", Set("base_dtype", "BF16"), "'base_dtype'"},
      {"no dims", Without("dims"), "no 'dims'"},
      {"dims are not JSON", Set("dims", "H=2"), "'dims'"},
      {"dims lack a field", Set("dims", R"({"key_heads":2})"), "'value_heads'"},
      {"dims are absurd",
       Set("dims", R"({"key_heads":3,"value_heads":4,"key_dim":6,"value_dim":5,"conv_width":4,"hidden_size":16})"),
       "multiple of key_heads"},
      {"dims beyond 32 bits",
       Set("dims", R"({"key_heads":2,"value_heads":4294967300,"key_dim":6,"value_dim":5,)"
                   R"("conv_width":4,"hidden_size":16})"),
       "'value_heads'"},
      {"no layer count", Without("layer_count"), "no 'layer_count'"},
      {"layer count of zero", Set("layer_count", "0"), "'layer_count'"},
      {"layer count too large", Set("layer_count", "4097"), "'layer_count'"},
      {"layer count with a sign", Set("layer_count", "+12"), "'layer_count'"},
      {"layer beyond the count", Set("layer_count", "11"), "'layer.11'"},
      {"layers are no array", Set("layers", "0-11"), "'layers'"},
      {"no layers", Set("layers", "[]"), "'layers'"},
      {"layers beyond the count", Set("layers", "[0,2,11,12]"), "'layers'"},
      {"layers that do not ascend", Set("layers", "[0,11,2]"), "'layers'"},
      {"layers that are negative", Set("layers", "[-1,0,2,11]"), "'layers'"},
      {"a state of another layer than the session's", Set("layers", "[0,2]"), "layer 11 is not one of the session's"},
      {"layer with leading zero", Set("layer.00", R"({"token_count":1})"), "'layer.00'"},
      {"log without capacity", Without("log_capacity"), "'log_capacity'"},
      {"layer entry is not JSON", Set("layer.2", "41"), "'layer.2'"},
      {"no token count", Set("layer.0", R"({"log_length":0})"), "'token_count'"},
      {"negative token count", Set("layer.0", R"({"token_count":-1})"), "'token_count'"},
      {"token count beyond 63 bits", Set("layer.0", R"({"token_count":18446744073709551615})"), "'token_count'"},
      {"token count beyond its limit", Set("layer.0", R"({"token_count":9007199254740993})"), "'token_count'"},
      {"token count and draft beyond the limit",
       Set("layer.11", R"({"token_count":9007199254740990,"draft_length":3})"), "draft_length of at most 2"},
      {"token count of a reply beyond its limit",
       Set("layer.2", R"({"token_count":41,"log_length":4,"reply":{"request_id":"r","compute_time_us":1,)"
                      R"("payload":"0123456789abcdef000000000000002a","token_count":9007199254740993}})"),
       "a reply of"},
      {"log longer than the tokens", Set("layer.2", R"({"token_count":3,"log_length":4})"), "log_length"},
      {"log longer than any", Set("layer.2", R"({"token_count":4000000000,"log_length":4000000000})"), "log_length"},
      {"draft longer than any", Set("layer.11", R"({"token_count":99,"draft_length":65})"), "draft_length"},
      {"fewer parents than draft tokens",
       Set("layer.11", R"({"token_count":99,"log_length":15,"draft_length":3,"draft_parents":[-1,0]})"),
       "draft_parents"},
      {"a parent that is no earlier token",
       Set("layer.11", R"({"token_count":99,"log_length":15,"draft_length":3,"draft_parents":[-1,0,2]})"),
       "draft_parents"},
      {"a parent below all", Set("layer.11", R"({"token_count":99,"draft_length":1,"draft_parents":[-2]})"),
       "draft_parents"},
      {"parents that are no array", Set("layer.11", R"({"token_count":99,"draft_length":1,"draft_parents":-1})"),
       "draft_parents"},
      {"a path that is no array", Set("accept", R"({"request_id":"r","accepted_tokens":1,"path":0})"), "'accept'"},
      {"unknown place of a base", Set("layer.0", R"({"token_count":37,"base":"gone"})"), "'layer.0'"},
      {"base left out of a full file",
       [](Parts& p) {
         Set("layer.0", R"({"token_count":37,"base":"left_out"})")(p);
         p.Erase("layer.0.recurrent_state");
       },
       "no base_snapshot_id"},
      {"base left out, but there", Set("layer.0", R"({"token_count":37,"base":"left_out"})"),
       "layer.0.recurrent_state"},
      {"bad epoch", Set("epoch", "0"), "'epoch'"},
      {"epoch beyond its limit", Set("epoch", "9007199254740993"), "'epoch'"},
      {"bad time", Set("created", "yesterday"), "'created'"},
      {"bad accept", Set("accept", "{}"), "'accept'"},
      {"bad owner", Set("owner", "{}"), "'owner'"},
      {"no draft columns", Erase("layer.11.draft_conv_state"), "layer.11.draft_conv_state"},
      {"draft columns without a draft", Put("layer.2.draft_conv_state", {44, 1}), "layer.2.draft_conv_state"},
      {"reply without metadata", Set("layer.2", R"({"token_count":41,"log_length":4})"), "layer.2.reply"},
      {"unknown input kind", Set("layer.0", R"({"token_count":37,"input_kind":"tokens"})"), "input_kind"},
      {"entry without tensors", Set("layer.5", R"({"token_count":1})"), "layer.5.conv_state"},
      {"tensors without entry", Without("layer.0"), "'layer.0'"},
      {"foreign tensor", Put("weight", {1}), "'weight'"},
      {"unknown part", Put("layer.0.extra", {1}), "'layer.0.extra'"},
      {"misspelt layer", Put("layer.02.log_g", {4, 4}), "'layer.02.log_g'"},
      {"no conv state", Erase("layer.0.conv_state"), "layer.0.conv_state"},
      {"no state", Erase("layer.0.recurrent_state"), "layer.0.recurrent_state"},
      {"log without base", Erase("layer.2.base_state"), "layer 2 has only some"},
      {"base without log_g", Erase("layer.2.log_g"), "layer 2 has only some"},
      {"log length of zero with a log", Set("layer.2", R"({"token_count":41})"), "log_length of 0"},
      {"log length without a log", Set("layer.0", R"({"token_count":37,"log_length":1})"), "no log tensors"},
      {"shorter log", Put("layer.2.log_u", {3, 4, 5}), "layer.2.log_u"},
      {"transposed state", Put("layer.0.recurrent_state", {4, 5, 6}), "layer.0.recurrent_state"},
      {"transposed extra state", Put("layer.11.recurrent_state", {4, 5, 6}), "layer.11.recurrent_state"},
      {"wider conv state", Put("layer.0.conv_state", {44, 4}), "layer.0.conv_state"},
  };
  for (const Case& c : cases) {
    Parts parts(bytes_);
    c.change(parts);
    const absl::Status status = ParseStateFile(parts.Bytes()).status();
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile, c.what);
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.what;
    EXPECT_NE(ErrorMetadata(status)["tensor"], "") << c.what;
    const std::string bytes = parts.Bytes();
    const absl::Status listed = ParseStateFileHeader(bytes, static_cast<int64_t>(bytes.size())).status();
    EXPECT_EQ(listed, status) << c.what << ": the header alone tells";
  }
}

TEST_F(ForeignStateFile, AnOperatorSessionHasNoConvState) {
  TestSession session = MakeOperatorSession();
  Parts parts(Encode(session, memory_.host));
  parts.Put("layer.0.conv_state", {29, 3});
  EXPECT_THAT(std::string(ParseStateFile(parts.Bytes()).status().message()), HasSubstr("layer.0.conv_state"));
}

}  // namespace
}  // namespace gdn::state_file_foreign_test
