#include "state_store/snapshot.h"

#include <bit>
#include <cstring>
#include <functional>
#include <limits>
#include <map>

#include "base/error.h"
#include "base/safetensors.h"
#include "base/string_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr LayerDims kModelDims{
    .key_heads = 2, .value_heads = 4, .key_dim = 6, .value_dim = 5, .conv_width = 4, .hidden_size = 16};
constexpr LayerDims kOperatorDims{.key_heads = 1, .value_heads = 3, .key_dim = 4, .value_dim = 7};

LayerSnapshot MakeLayer(const LayerDims& dims, int32_t layer, int64_t token_count, int32_t log_length, Random& random) {
  LayerSnapshot snapshot;
  snapshot.layer = layer;
  snapshot.token_count = token_count;
  snapshot.log_length = log_length;
  snapshot.input_kind = dims.has_layer() ? InputKind::kHiddenStates : InputKind::kDeltaRule;
  snapshot.image.base = random.Normal(dims.state_elements());
  snapshot.image.log_k = random.Normal(log_length * dims.key_features());
  snapshot.image.log_u = random.Normal(log_length * dims.value_features());
  snapshot.image.log_g = random.Uniform(int64_t{log_length} * dims.value_heads, -3.0f, 0.0f);
  if (dims.conv_width > 0) snapshot.image.conv = random.Normal(dims.conv_channels() * (dims.conv_width - 1));
  return snapshot;
}

Snapshot MakeModelSnapshot() {
  Random random(5);
  Snapshot snapshot{.dims = kModelDims,
                    .model_fingerprint = "0123456789abcdef0123456789abcdef",
                    .numerics_id = "cpu/\"avx2\"/1",
                    .layer_count = 12,
                    .layers = {}};
  snapshot.layers.push_back(MakeLayer(kModelDims, 0, 37, 0, random));
  snapshot.layers.push_back(MakeLayer(kModelDims, 2, 41, 4, random));
  snapshot.layers.push_back(MakeLayer(kModelDims, 11, int64_t{1} << 40, 15, random));
  snapshot.layers[2].recurrent_state = random.Normal(kModelDims.state_elements());
  return snapshot;
}

void ExpectSame(const Snapshot& a, const Snapshot& b) {
  EXPECT_EQ(a.dims, b.dims);
  EXPECT_EQ(a.model_fingerprint, b.model_fingerprint);
  EXPECT_EQ(a.numerics_id, b.numerics_id);
  EXPECT_EQ(a.layer_count, b.layer_count);
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (size_t i = 0; i < a.layers.size(); ++i) {
    const LayerSnapshot& x = a.layers[i];
    const LayerSnapshot& y = b.layers[i];
    EXPECT_EQ(x.layer, y.layer);
    EXPECT_EQ(x.token_count, y.token_count);
    EXPECT_EQ(x.log_length, y.log_length);
    EXPECT_EQ(x.input_kind, y.input_kind);
    EXPECT_TRUE(BitEqual(x.image.base, y.image.base));
    EXPECT_TRUE(BitEqual(x.image.log_k, y.image.log_k));
    EXPECT_TRUE(BitEqual(x.image.log_u, y.image.log_u));
    EXPECT_TRUE(BitEqual(x.image.log_g, y.image.log_g));
    EXPECT_TRUE(BitEqual(x.image.conv, y.image.conv));
  }
}

// A state file taken apart, to be changed and put together again.
struct Parts {
  explicit Parts(const std::string& bytes) {
    const auto file = SafetensorsFile::Parse(bytes);
    EXPECT_TRUE(file.ok()) << file.status();
    metadata = file->metadata();
    for (const auto& [name, entry] : file->entries()) {
      shapes[name] = entry.shape;
      tensors[name] = *file->Floats(name);
    }
  }

  std::string Bytes() const {
    std::vector<NamedTensor> named;
    for (const auto& [name, values] : tensors) {
      const std::string_view data(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
      named.push_back({.name = name, .view = {.dtype = DType::kF32, .shape = shapes.at(name), .data = data}});
    }
    const auto bytes = SerializeSafetensors(named, metadata);
    EXPECT_TRUE(bytes.ok()) << bytes.status();
    return *bytes;
  }

  void Erase(const std::string& name) { tensors.erase(name); }
  void Put(const std::string& name, std::vector<int64_t> shape) {
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    shapes[name] = std::move(shape);
    tensors[name].assign(static_cast<size_t>(count), 0.5f);
  }

  std::map<std::string, std::string> metadata;
  std::map<std::string, std::vector<int64_t>> shapes;
  std::map<std::string, std::vector<float>> tensors;
};

std::string EncodedModelSnapshot() {
  const auto bytes = EncodeSnapshot(MakeModelSnapshot());
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return *bytes;
}

TEST(Snapshot, AModelSessionRoundTripsBitForBit) {
  Snapshot snapshot = MakeModelSnapshot();
  std::vector<float>& base = snapshot.layers[1].image.base;
  base[0] = -0.0f;
  base[1] = std::bit_cast<float>(0x7fc12345u);
  base[2] = -std::numeric_limits<float>::infinity();
  base[3] = std::numeric_limits<float>::denorm_min();
  const auto bytes = EncodeSnapshot(snapshot);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  const auto decoded = DecodeSnapshot(*bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded, snapshot);
  EXPECT_EQ(*EncodeSnapshot(snapshot), *bytes);
}

TEST(Snapshot, AnOperatorSessionRoundTrips) {
  Random random(9);
  Snapshot snapshot{
      .dims = kOperatorDims, .model_fingerprint = "", .numerics_id = "cpu", .layer_count = 1, .layers = {}};
  snapshot.layers.push_back(MakeLayer(kOperatorDims, 0, 9, 3, random));
  const auto bytes = EncodeSnapshot(snapshot);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_FALSE(SafetensorsFile::Parse(*bytes)->Contains("layer.0.conv_state"));
  const auto decoded = DecodeSnapshot(*bytes);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ExpectSame(*decoded, snapshot);
}

TEST(Snapshot, ASessionWithoutAnyStepRoundTrips) {
  const Snapshot snapshot{
      .dims = kModelDims, .model_fingerprint = "f", .numerics_id = "n", .layer_count = 3, .layers = {}};
  const auto bytes = EncodeSnapshot(snapshot);
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  ExpectSame(*DecodeSnapshot(*bytes), snapshot);
}

TEST(Snapshot, AnImportedStateWithoutTokensRoundTrips) {
  Random random(2);
  Snapshot snapshot = MakeModelSnapshot();
  snapshot.layers = {MakeLayer(kModelDims, 1, 0, 0, random)};
  ExpectSame(*DecodeSnapshot(*EncodeSnapshot(snapshot)), snapshot);
}

TEST(Snapshot, TensorsAndMetadataAreNamedAsDocumented) {
  const Parts parts(EncodedModelSnapshot());
  std::vector<std::string> names;
  for (const auto& [name, values] : parts.tensors) names.push_back(name);
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre("layer.0.conv_state", "layer.0.recurrent_state", "layer.2.conv_state",
                                              "layer.2.base_state", "layer.2.log_k", "layer.2.log_u", "layer.2.log_g",
                                              "layer.11.conv_state", "layer.11.base_state", "layer.11.log_k",
                                              "layer.11.log_u", "layer.11.log_g", "layer.11.recurrent_state"));
  EXPECT_THAT(parts.shapes.at("layer.2.conv_state"), ::testing::ElementsAre(2 * 2 * 6 + 4 * 5, 3));
  EXPECT_THAT(parts.shapes.at("layer.2.base_state"), ::testing::ElementsAre(4, 6, 5));
  EXPECT_THAT(parts.shapes.at("layer.2.log_k"), ::testing::ElementsAre(4, 2, 6));
  EXPECT_THAT(parts.shapes.at("layer.2.log_u"), ::testing::ElementsAre(4, 4, 5));
  EXPECT_THAT(parts.shapes.at("layer.2.log_g"), ::testing::ElementsAre(4, 4));
  EXPECT_EQ(parts.metadata.at("format"), "gdn.state");
  EXPECT_EQ(parts.metadata.at("format_version"), "1");
  EXPECT_EQ(parts.metadata.at("layer_count"), "12");
  EXPECT_EQ(parts.metadata.at("layer.2"), R"({"input_kind":"hidden_states","log_length":4,"token_count":41})");
  EXPECT_EQ(parts.tensors.at("layer.11.recurrent_state"), MakeModelSnapshot().layers[2].recurrent_state);
}

TEST(Snapshot, AFileOfAnotherToolNeedsOnlyStateAndTokenCount) {
  const Snapshot original = MakeModelSnapshot();
  Parts parts(EncodedModelSnapshot());
  std::erase_if(parts.tensors, [](const auto& tensor) { return !tensor.first.starts_with("layer.0."); });
  for (const char* key : {"model_fingerprint", "numerics_id", "log_capacity", "layer.2", "layer.11"}) {
    parts.metadata.erase(key);
  }
  parts.metadata["layer.0"] = R"({"token_count": 37})";
  const auto decoded = DecodeSnapshot(parts.Bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  ASSERT_EQ(decoded->layers.size(), 1u);
  EXPECT_EQ(decoded->layers[0].token_count, 37);
  EXPECT_EQ(decoded->layers[0].log_length, 0);
  EXPECT_EQ(decoded->layers[0].input_kind, InputKind::kNone);
  EXPECT_TRUE(BitEqual(decoded->layers[0].image.base, original.layers[0].image.base));
}

TEST(Snapshot, ALogOfAnotherCapacityIsReplacedByTheMaterialisedState) {
  const Snapshot original = MakeModelSnapshot();
  Parts parts(EncodedModelSnapshot());
  parts.metadata["log_capacity"] = "32";
  const absl::Status status = DecodeSnapshot(parts.Bytes()).status();  // layer 2 has none
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("32"), HasSubstr("recurrent_state")));

  parts.Put("layer.2.recurrent_state", {4, 6, 5});
  const auto decoded = DecodeSnapshot(parts.Bytes());
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(decoded->layers[2].log_length, 0);
  EXPECT_TRUE(decoded->layers[2].image.log_u.empty());
  EXPECT_TRUE(BitEqual(decoded->layers[2].image.base, original.layers[2].recurrent_state));
  EXPECT_TRUE(BitEqual(decoded->layers[2].image.conv, original.layers[2].image.conv));
  EXPECT_EQ(decoded->layers[2].token_count, original.layers[2].token_count);
}

TEST(Snapshot, RefusesInconsistentFilesByName) {
  struct Case {
    std::string what;
    std::function<void(Parts&)> change;
    std::string message;
  };
  const Case cases[] = {
      {"no metadata at all", [](Parts& p) { p.metadata.clear(); }, "no 'format'"},
      {"no format", [](Parts& p) { p.metadata.erase("format"); }, "no 'format'"},
      {"foreign format", [](Parts& p) { p.metadata["format"] = "pt"; }, "'pt'"},
      {"no version", [](Parts& p) { p.metadata.erase("format_version"); }, "no 'format_version'"},
      {"newer version", [](Parts& p) { p.metadata["format_version"] = "2"; }, "expected 1"},
      {"no dims", [](Parts& p) { p.metadata.erase("dims"); }, "no 'dims'"},
      {"dims are not JSON", [](Parts& p) { p.metadata["dims"] = "H=2"; }, "'dims'"},
      {"dims lack a field", [](Parts& p) { p.metadata["dims"] = R"({"key_heads":2})"; }, "'value_heads'"},
      {"dims are absurd",
       [](Parts& p) {
         p.metadata["dims"] =
             R"({"key_heads":3,"value_heads":4,"key_dim":6,"value_dim":5,"conv_width":4,"hidden_size":16})";
       },
       "multiple of key_heads"},
      {"dims beyond 32 bits",
       [](Parts& p) {
         p.metadata["dims"] =
             R"({"key_heads":2,"value_heads":4294967300,"key_dim":6,"value_dim":5,"conv_width":4,"hidden_size":16})";
       },
       "'value_heads'"},
      {"no layer count", [](Parts& p) { p.metadata.erase("layer_count"); }, "no 'layer_count'"},
      {"layer count of zero", [](Parts& p) { p.metadata["layer_count"] = "0"; }, "'layer_count'"},
      {"layer count too large", [](Parts& p) { p.metadata["layer_count"] = "4097"; }, "'layer_count'"},
      {"layer count with a sign", [](Parts& p) { p.metadata["layer_count"] = "+12"; }, "'layer_count'"},
      {"layer beyond the count", [](Parts& p) { p.metadata["layer_count"] = "11"; }, "'layer.11'"},
      {"layer with leading zero", [](Parts& p) { p.metadata["layer.00"] = R"({"token_count":1})"; }, "'layer.00'"},
      {"log without capacity", [](Parts& p) { p.metadata.erase("log_capacity"); }, "'log_capacity'"},
      {"layer entry is not JSON", [](Parts& p) { p.metadata["layer.2"] = "41"; }, "'layer.2'"},
      {"no token count", [](Parts& p) { p.metadata["layer.0"] = R"({"log_length":0})"; }, "'token_count'"},
      {"negative token count", [](Parts& p) { p.metadata["layer.0"] = R"({"token_count":-1})"; }, "'token_count'"},
      {"token count beyond 63 bits",
       [](Parts& p) { p.metadata["layer.0"] = R"({"token_count":18446744073709551615})"; }, "'token_count'"},
      {"log longer than the tokens", [](Parts& p) { p.metadata["layer.2"] = R"({"token_count":3,"log_length":4})"; },
       "log_length"},
      {"log longer than any",
       [](Parts& p) { p.metadata["layer.2"] = R"({"token_count":4000000000,"log_length":4000000000})"; }, "log_length"},
      {"unknown input kind", [](Parts& p) { p.metadata["layer.0"] = R"({"token_count":37,"input_kind":"tokens"})"; },
       "input_kind"},
      {"entry without tensors", [](Parts& p) { p.metadata["layer.5"] = R"({"token_count":1})"; }, "layer.5.conv_state"},
      {"tensors without entry", [](Parts& p) { p.metadata.erase("layer.0"); }, "'layer.0'"},
      {"foreign tensor", [](Parts& p) { p.Put("weight", {1}); }, "'weight'"},
      {"unknown part", [](Parts& p) { p.Put("layer.0.extra", {1}); }, "'layer.0.extra'"},
      {"misspelt layer",
       [](Parts& p) {
         p.Put("layer.02.log_g", {4, 4});
       },
       "'layer.02.log_g'"},
      {"no conv state", [](Parts& p) { p.Erase("layer.0.conv_state"); }, "layer.0.conv_state"},
      {"no state", [](Parts& p) { p.Erase("layer.0.recurrent_state"); }, "layer.0.recurrent_state"},
      {"log without base", [](Parts& p) { p.Erase("layer.2.base_state"); }, "layer 2 has only some"},
      {"base without log_g", [](Parts& p) { p.Erase("layer.2.log_g"); }, "layer 2 has only some"},
      {"log length of zero with a log", [](Parts& p) { p.metadata["layer.2"] = R"({"token_count":41})"; },
       "log_length of 0"},
      {"log length without a log", [](Parts& p) { p.metadata["layer.0"] = R"({"token_count":37,"log_length":1})"; },
       "no log tensors"},
      {"shorter log",
       [](Parts& p) {
         p.Put("layer.2.log_u", {3, 4, 5});
       },
       "layer.2.log_u"},
      {"transposed state",
       [](Parts& p) {
         p.Put("layer.0.recurrent_state", {4, 5, 6});
       },
       "layer.0.recurrent_state"},
      {"transposed extra state",
       [](Parts& p) {
         p.Put("layer.11.recurrent_state", {4, 5, 6});
       },
       "layer.11.recurrent_state"},
      {"wider conv state",
       [](Parts& p) {
         p.Put("layer.0.conv_state", {44, 4});
       },
       "layer.0.conv_state"},
  };
  for (const Case& c : cases) {
    Parts parts(EncodedModelSnapshot());
    c.change(parts);
    const absl::Status status = DecodeSnapshot(parts.Bytes()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << c.what << ": " << status;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidStateFile) << c.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(c.message)) << c.what;
  }
}

TEST(Snapshot, AnOperatorSessionHasNoConvState) {
  Random random(9);
  Snapshot snapshot{
      .dims = kOperatorDims, .model_fingerprint = "", .numerics_id = "cpu", .layer_count = 1, .layers = {}};
  snapshot.layers.push_back(MakeLayer(kOperatorDims, 0, 9, 0, random));
  Parts parts(*EncodeSnapshot(snapshot));
  parts.Put("layer.0.conv_state", {29, 3});
  EXPECT_THAT(std::string(DecodeSnapshot(parts.Bytes()).status().message()), HasSubstr("layer.0.conv_state"));
}

TEST(Snapshot, EveryTruncationIsDataLoss) {
  const std::string bytes = EncodedModelSnapshot();
  for (size_t size = 0; size < bytes.size(); size += 64) {
    const absl::Status status = DecodeSnapshot(bytes.substr(0, size)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
    EXPECT_EQ(ErrorReason(status), reason::kInvalidStateFile) << size;
  }
}

// The format carries no checksum: a changed number in the header's text may still be a valid one.
TEST(Snapshot, FlippedHeaderBytesNeverCrash) {
  const std::string bytes = EncodedModelSnapshot();
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof(header));
  Random random(77);
  int refused = 0;
  for (int i = 0; i < 300; ++i) {
    std::string flipped = bytes;
    const auto at = static_cast<size_t>(random.NextInt(0, static_cast<int32_t>(sizeof(header) + header) - 1));
    flipped[at] = static_cast<char>(flipped[at] ^ random.NextInt(1, 255));
    const auto decoded = DecodeSnapshot(flipped);
    if (decoded.ok()) {
      EXPECT_TRUE(EncodeSnapshot(*decoded).ok()) << "byte " << at;  // consistent in itself
      continue;
    }
    ++refused;
    // log_capacity itself may be the number that changed.
    EXPECT_TRUE(decoded.status().code() == absl::StatusCode::kDataLoss ||
                ErrorReason(decoded.status()) == reason::kStateMismatch)
        << "byte " << at << ": " << decoded.status();
  }
  EXPECT_GT(refused, 200);
}

TEST(Snapshot, FlippedDataBytesChangeOneValue) {
  const std::string bytes = EncodedModelSnapshot();
  Random random(78);
  for (int i = 0; i < 50; ++i) {
    std::string flipped = bytes;
    const size_t at = bytes.size() - 1 - static_cast<size_t>(random.NextInt(0, 2000));
    flipped[at] = static_cast<char>(flipped[at] ^ 1);
    EXPECT_TRUE(DecodeSnapshot(flipped).ok()) << at;
  }
}

TEST(Snapshot, EncodeRefusesPartsThatDoNotFit) {
  const std::function<void(Snapshot&)> changes[] = {
      [](Snapshot& s) { s.layers[0].image.base.pop_back(); },
      [](Snapshot& s) { s.layers[0].image.conv.clear(); },
      [](Snapshot& s) { s.layers[1].image.log_k.push_back(0.0f); },
      [](Snapshot& s) { s.layers[1].log_length = -1; },
      [](Snapshot& s) { s.layers[1].token_count = 3; },
      [](Snapshot& s) { s.layers[2].recurrent_state.pop_back(); },
      [](Snapshot& s) { std::swap(s.layers[0], s.layers[1]); },
      [](Snapshot& s) { s.layer_count = 11; },
      [](Snapshot& s) { s.layer_count = 0; },
      [](Snapshot& s) { s.layers[0].layer = -1; },
      [](Snapshot& s) { s.dims.key_dim = 0; },
  };
  for (const auto& change : changes) {
    Snapshot snapshot = MakeModelSnapshot();
    change(snapshot);
    EXPECT_EQ(EncodeSnapshot(snapshot).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace gdn
