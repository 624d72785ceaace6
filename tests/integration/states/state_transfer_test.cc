// ExportState and ImportState: a session goes on elsewhere to the bit. state_import_refusal_test.cc has the files that
// make no session, and state_watch_test.cc WatchState.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "base/files/safetensors.h"
#include "base/hash.h"
#include "tests/integration/support/state_transfer_fixture.h"
#include "tests/support/compare.h"

namespace gdn::state_transfer_test {
namespace {

using ::testing::UnorderedElementsAre;

TEST_F(StateTransfer, ASessionGoesOnInAnotherServerToTheBit) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  TestServer second({.models = {{"m", GoldenPath(kSet)}}}, MakeTestBackend(/*threads=*/1));
  const Caller elsewhere(second);
  ASSERT_REPLY(const auto imported, elsewhere.Import("b", "m", file));
  EXPECT_EQ(imported.name(), "sessions/b");
  ASSERT_EQ(imported.layers_size(), 3);
  const std::vector<int64_t> counts = {37, 25, 20};
  const std::vector<int32_t> logs = {0, 5, 4};
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(imported.layers(layer).token_count(), counts[static_cast<size_t>(layer)]);
    EXPECT_EQ(imported.layers(layer).log_length(), logs[static_cast<size_t>(layer)]);
    EXPECT_EQ(imported.layers(layer).input_kind(), v1::INPUT_KIND_HIDDEN_STATES);
  }
  EXPECT_EQ(elsewhere.State("b"), caller_.State("a"));
  EXPECT_EQ(GoOn(elsewhere, "b"), GoOn(caller_, "a"));
  EXPECT_EQ(elsewhere.State("b"), caller_.State("a"));
}

TEST_F(StateTransfer, TheFileHoldsWhatTheApiSays) {
  MakeUneven(caller_, "a");
  const auto names = [](const std::string& bytes) {
    std::vector<std::string> found;
    const SafetensorsFile file = SafetensorsFile::Parse(bytes).value();
    for (const auto& [name, entry] : file.entries()) {
      EXPECT_EQ(entry.dtype, "F32");
      found.push_back(name);
    }
    return found;
  };
  const std::string plain = File("a");
  const std::string state = caller_.State("a");
  EXPECT_THAT(names(plain), UnorderedElementsAre("layer.0.conv_state", "layer.0.recurrent_state", "layer.1.conv_state",
                                                 "layer.1.base_state", "layer.1.log_k", "layer.1.log_u",
                                                 "layer.1.log_g", "layer.2.conv_state", "layer.2.base_state",
                                                 "layer.2.log_k", "layer.2.log_u", "layer.2.log_g"));
  ASSERT_REPLY(const auto full, caller_.Export("a", /*include_recurrent_state=*/true));
  EXPECT_EQ(names(full).size(), 14u);
  const SafetensorsFile file = SafetensorsFile::Parse(full).value();
  EXPECT_EQ(file.entries().at("layer.1.recurrent_state").shape, (std::vector<int64_t>{6, 48, 32}));
  EXPECT_EQ(file.entries().at("layer.1.log_u").shape, (std::vector<int64_t>{5, 6, 32}));
  EXPECT_EQ(file.entries().at("layer.0.conv_state").shape, (std::vector<int64_t>{384, 3}));
  EXPECT_EQ(file.metadata().at("format"), "gdn.state");
  EXPECT_EQ(file.metadata().at("numerics_id"), caller_.Info().reply.numerics_id());
  EXPECT_EQ(caller_.State("a"), state) << "looking changes nothing";
}

TEST_F(StateTransfer, AnUnusedSessionTravelsToo) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  const auto imported = caller_.Import("b", "m", File("a"));
  ASSERT_TRUE(imported.ok()) << imported.status.error_message();
  EXPECT_EQ(GoOn(caller_, "b"), GoOn(caller_, "a"));
}

TEST_F(StateTransfer, AFileWithOnlyTheRecurrentStateIsEnough) {
  MakeUneven(caller_, "a");
  const auto full = caller_.Export("a", /*include_recurrent_state=*/true);
  const std::string file =
      Rewrite(full.reply,
              {{"layer.1.recurrent_state", "layer.1.recurrent_state"}, {"layer.1.conv_state", "layer.1.conv_state"}},
              {{"layer.1", R"({"token_count": 25})"}});
  // Layers 0 and 2 stay in the metadata with tokens but without tensors: refused, rather than taken for zero.
  const auto incomplete = caller_.Import("b", "m", file);
  EXPECT_EQ(incomplete.reason(), "INVALID_STATE_FILE");

  const SafetensorsFile parsed = SafetensorsFile::Parse(file).value();
  auto metadata = Unsealed(parsed);
  metadata.erase("layer.0");
  metadata.erase("layer.2");
  const std::string only =
      SerializeSafetensors({{"layer.1.recurrent_state", parsed.Tensor("layer.1.recurrent_state").value()},
                            {"layer.1.conv_state", parsed.Tensor("layer.1.conv_state").value()}},
                           metadata)
          .value();
  ASSERT_REPLY(const auto imported, caller_.Import("b", "m", only));
  EXPECT_EQ(imported.layers(1).token_count(), 25);
  EXPECT_EQ(imported.layers(1).log_length(), 0);
  for (int t = 0; t < 20; ++t) {
    ASSERT_REPLY(const auto both,
                 caller_.Decode(DecodeOf({"a", "b"}, 1, std::vector<Tokens>(2, inputs_.Token(25 + t)))));
    const std::vector<float> outputs = Floats(both.output());
    EXPECT_LE(RelativeNormError({outputs.data() + 64, 64}, absl::Span<const float>{outputs.data(), 64}),
              kSplitTolerance);
  }
}

TEST_F(StateTransfer, ADraftAndStoredRepliesTravelToo) {
  MakeUneven(caller_, "a");
  v1::DecodeRequest stored = WithId(DecodeOf({"a"}, 0, {inputs_.Slice(37, 3)}), "once");
  ASSERT_REPLY(const auto answered, caller_.Decode(stored));
  v1::DecodeRequest draft = DecodeOf({"a"}, 1, {inputs_.Slice(25, 4)});
  draft.set_draft(true);
  ASSERT_TRUE(caller_.Decode(draft).ok());

  TestServer second({.models = {{"m", GoldenPath(kSet)}}}, MakeTestBackend(/*threads=*/1));
  const Caller elsewhere(second);
  ASSERT_REPLY(const auto imported, elsewhere.Import("a", "m", File("a")));
  EXPECT_EQ(imported.layers(0).token_count(), 40);
  EXPECT_EQ(imported.layers(1).token_count(), 25);
  EXPECT_EQ(imported.layers(1).draft_length(), 4);
  EXPECT_EQ(elsewhere.State("a"), caller_.State("a"));
  ASSERT_REPLY(const auto retried, elsewhere.Decode(stored));
  EXPECT_EQ(retried.output().data(), answered.output().data());
  EXPECT_EQ(elsewhere.TokenCount("a", 0), 40) << "the retry moves nothing";
  stored.mutable_hidden_states()->mutable_hidden_states()->mutable_data()->at(1) ^= 1;
  EXPECT_EQ(elsewhere.Decode(stored).reason(), "REQUEST_ID_REUSED");

  EXPECT_EQ(elsewhere.Decode(DecodeOf({"a"}, 1, {inputs_.Token(27)})).reason(), "DRAFT_PENDING");
  ASSERT_TRUE(caller_.Accept("a", 2).ok());
  ASSERT_TRUE(elsewhere.Accept("a", 2).ok());
  EXPECT_EQ(elsewhere.TokenCount("a", 1), 27);
  EXPECT_EQ(GoOn(elsewhere, "a"), GoOn(caller_, "a"));
  EXPECT_EQ(elsewhere.State("a"), caller_.State("a"));
}

TEST_F(StateTransfer, TheMaterialisedStateComesInTheDtypeAskedFor) {
  MakeUneven(caller_, "a");
  ASSERT_REPLY(const auto full, caller_.Export("a", /*include_recurrent_state=*/true));
  v1::ExportStateRequest request;
  request.set_name("sessions/a");
  request.set_include_recurrent_state(true);
  request.set_recurrent_state_dtype(v1::DTYPE_BF16);
  ASSERT_REPLY(const std::string bytes, caller_.Export(request));
  const SafetensorsFile narrow = SafetensorsFile::Parse(bytes).value();
  const SafetensorsFile wide = SafetensorsFile::Parse(full).value();
  EXPECT_EQ(narrow.entries().at("layer.1.recurrent_state").dtype, "BF16");
  EXPECT_EQ(narrow.entries().at("layer.1.base_state").dtype, "F32");
  EXPECT_EQ(narrow.entries().at("layer.0.recurrent_state").dtype, "F32") << "it is the base itself";
  const std::vector<float> rounded = narrow.Floats("layer.1.recurrent_state").value();
  const std::vector<float> exact = wide.Floats("layer.1.recurrent_state").value();
  ASSERT_EQ(rounded.size(), exact.size());
  for (size_t i = 0; i < exact.size(); ++i) {
    EXPECT_LE(std::abs(rounded[i] - exact[i]), std::abs(exact[i]) / 256) << i;  // 8 bits of mantissa, rounded
  }
  EXPECT_TRUE(caller_.Import("b", "m", bytes).ok());
  EXPECT_EQ(caller_.State("b"), caller_.State("a"));

  request.set_recurrent_state_dtype(v1::DTYPE_F16);
  EXPECT_EQ(caller_.Export(request).reason(), "INVALID_TENSOR_DTYPE");
}

TEST_F(StateTransfer, PiecesAreInOrderAndSayTheWhole) {
  v1::OperatorSpec spec;  // half a megabyte a layer
  spec.set_key_heads(2);
  spec.set_value_heads(8);
  spec.set_key_dim(128);
  spec.set_value_dim(128);
  spec.set_layer_count(9);
  v1::CreateSessionRequest create;
  create.set_session_id("big");
  *create.mutable_operator_() = spec;
  for (int layer = 0; layer < 9; ++layer) create.add_initial_states()->set_layer(layer);
  ASSERT_TRUE(caller_.Create(create).ok());
  v1::ExportStateRequest request;
  request.set_name("sessions/big");
  grpc::ClientContext context;
  const auto reader = server_.stub().ExportState(&context, request);
  v1::ExportStateResponse piece;
  std::string file;
  int pieces = 0;
  for (; reader->Read(&piece); ++pieces) {
    EXPECT_EQ(piece.offset(), static_cast<int64_t>(file.size()));
    EXPECT_GT(piece.data().size(), 0u);
    EXPECT_EQ(piece.checksum(), Hash64(piece.data()));
    file += piece.data();
    EXPECT_GT(piece.total_bytes(), 9 * 8 * 128 * 128 * 4);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(piece.total_bytes(), static_cast<int64_t>(file.size()));
  EXPECT_GE(pieces, 3);
  EXPECT_TRUE(SafetensorsFile::Parse(file).ok());
}

TEST_F(StateTransfer, ExportsWhileOthersDecodeAreWholeAndAlike) {
  MakeUneven(caller_, "quiet");
  const std::string state = caller_.State("quiet");
  ASSERT_TRUE(caller_.Create("loud", "m").ok());
  std::thread decoder([&] {
    for (int t = 0; t < 60; ++t) EXPECT_TRUE(caller_.Decode(DecodeOf({"loud"}, 0, {inputs_.Token(t)})).ok());
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(caller_.State("quiet"), state);
  decoder.join();
  EXPECT_EQ(caller_.TokenCount("loud", 0), 60);
}

// The materialised state is the one that transformers' cache holds.
TEST(StateFileGolden, TheMaterialisedStateIsTransformersFinalState) {
  constexpr char kSet[] = "qwen3_5_5";
  constexpr double kGoldenTolerance = 1e-5;
  TestServer server({.models = {{"m", GoldenPath(kSet)}}});
  const Caller caller(server);
  const SafetensorsFile io = SafetensorsFile::Open(GoldenPath(std::string(kSet) + "/io.safetensors")).value();
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    const Tokens inputs = GoldenInputs(kSet, layer);
    const std::string id = "s" + std::to_string(layer);
    ASSERT_TRUE(caller.Create(id, "m").ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, layer, inputs.Slice(0, 150))).ok());
    ASSERT_TRUE(caller.Decode(DecodeOf({id}, layer, {inputs.Slice(150, 8)})).ok());
    const auto exported = caller.Export(id, /*include_recurrent_state=*/true);
    const SafetensorsFile file = SafetensorsFile::Parse(exported.reply).value();
    std::vector<float> expected = io.Floats(prefix + "recurrent_state").value();
    expected.resize(6 * 48 * 32);  // sequence 0
    EXPECT_LE(RelativeNormError(file.Floats(prefix + "recurrent_state").value(), expected), kGoldenTolerance);
    const std::vector<float> conv = file.Floats(prefix + "conv_state").value();
    const std::vector<float> golden = io.Floats(prefix + "conv_state").value();  // [B, C, 4]
    std::vector<float> newest;
    for (size_t c = 0; c < 384; ++c) newest.insert(newest.end(), &golden[4 * c + 1], &golden[4 * c] + 4);
    EXPECT_LE(RelativeNormError(conv, newest), kGoldenTolerance);
  }
}

}  // namespace
}  // namespace gdn::state_transfer_test
