// ExportState and ImportState: a session goes on elsewhere to the bit, and a bad file makes no session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/safetensors.h"
#include "tests/integration/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kSet[] = "qwen3_5_5";
constexpr double kGoldenTolerance = 1e-5;

class StateTransfer : public ::testing::Test {
 protected:
  // A session whose layers are at different points: layer 0 prefilled, layer 1 with a log, layer 2 decoded over a fold.
  void MakeUneven(const Caller& caller, const std::string& id) {
    ASSERT_TRUE(caller.Create(id, "m").ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, 0, inputs_.Slice(0, 37))).ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, 1, inputs_.Slice(0, 20))).ok());
    for (int t = 0; t < 5; ++t) ASSERT_TRUE(caller.Decode(DecodeOf({id}, 1, {inputs_.Token(20 + t)})).ok());
    for (int t = 0; t < 5; ++t) ASSERT_TRUE(caller.Decode(DecodeOf({id}, 2, {inputs_.Slice(4 * t, 4)})).ok());
  }

  // Decodes across a fold and a prefill of every layer; all outputs.
  std::vector<std::string> GoOn(const Caller& caller, const std::string& id) {
    std::vector<std::string> outputs;
    for (int layer = 0; layer < 3; ++layer) {
      for (int t = 0; t < 18; ++t) {
        const auto reply = caller.Decode(DecodeOf({id}, layer, {inputs_.Token(60 + t)}));
        EXPECT_TRUE(reply.ok()) << reply.status.error_message();
        outputs.push_back(reply.reply.output().data());
      }
      const auto reply = caller.Prefill(PrefillOf(id, layer, inputs_.Slice(80, 40)));
      EXPECT_TRUE(reply.ok()) << reply.status.error_message();
      outputs.push_back(reply.reply.output().data());
    }
    return outputs;
  }

  // `file` with other tensors or metadata, as a tool might write it.
  static std::string Rewrite(const std::string& file, const std::map<std::string, std::string>& renamed,
                             const std::map<std::string, std::string>& changed_metadata) {
    const SafetensorsFile parsed = SafetensorsFile::Parse(file).value();
    std::vector<NamedTensor> tensors;
    for (const auto& [from, to] : renamed) tensors.push_back({to, parsed.Tensor(from).value()});
    auto metadata = parsed.metadata();
    for (const auto& [key, value] : changed_metadata) metadata[key] = value;
    return SerializeSafetensors(tensors, metadata).value();
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}, {"other", GoldenPath("qwen3_next_5")}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

TEST_F(StateTransfer, ASessionGoesOnInAnotherServerToTheBit) {
  MakeUneven(caller_, "a");
  const std::string file = caller_.State("a");
  TestServer second({.models = {{"m", GoldenPath(kSet)}}, .threads = 1});
  const Caller elsewhere(second);
  const auto imported = elsewhere.Import("b", "m", file);
  ASSERT_TRUE(imported.ok()) << imported.status.error_message();
  EXPECT_EQ(imported.reply.name(), "sessions/b");
  ASSERT_EQ(imported.reply.layers_size(), 3);
  const std::vector<int64_t> counts = {37, 25, 20};
  const std::vector<int32_t> logs = {0, 5, 4};
  for (int layer = 0; layer < 3; ++layer) {
    EXPECT_EQ(imported.reply.layers(layer).token_count(), counts[static_cast<size_t>(layer)]);
    EXPECT_EQ(imported.reply.layers(layer).log_length(), logs[static_cast<size_t>(layer)]);
    EXPECT_EQ(imported.reply.layers(layer).input_kind(), v1::INPUT_KIND_HIDDEN_STATES);
  }
  EXPECT_EQ(elsewhere.State("b"), file);
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
  const std::string plain = caller_.State("a");
  EXPECT_THAT(names(plain), UnorderedElementsAre("layer.0.conv_state", "layer.0.recurrent_state", "layer.1.conv_state",
                                                 "layer.1.base_state", "layer.1.log_k", "layer.1.log_u",
                                                 "layer.1.log_g", "layer.2.conv_state", "layer.2.base_state",
                                                 "layer.2.log_k", "layer.2.log_u", "layer.2.log_g"));
  const auto full = caller_.Export("a", /*include_recurrent_state=*/true);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(names(full.reply).size(), 14u);
  const SafetensorsFile file = SafetensorsFile::Parse(full.reply).value();
  EXPECT_EQ(file.entries().at("layer.1.recurrent_state").shape, (std::vector<int64_t>{6, 48, 32}));
  EXPECT_EQ(file.entries().at("layer.1.log_u").shape, (std::vector<int64_t>{5, 6, 32}));
  EXPECT_EQ(file.entries().at("layer.0.conv_state").shape, (std::vector<int64_t>{384, 3}));
  EXPECT_EQ(file.metadata().at("format"), "gdn.state");
  EXPECT_EQ(file.metadata().at("numerics_id"), caller_.Info().reply.numerics_id());
  EXPECT_EQ(caller_.State("a"), plain) << "looking changes nothing";
}

TEST_F(StateTransfer, AnUnusedSessionTravelsToo) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  const auto imported = caller_.Import("b", "m", caller_.State("a"));
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
  auto metadata = parsed.metadata();
  metadata.erase("layer.0");
  metadata.erase("layer.2");
  const std::string only =
      SerializeSafetensors({{"layer.1.recurrent_state", parsed.Tensor("layer.1.recurrent_state").value()},
                            {"layer.1.conv_state", parsed.Tensor("layer.1.conv_state").value()}},
                           metadata)
          .value();
  const auto imported = caller_.Import("b", "m", only);
  ASSERT_TRUE(imported.ok()) << imported.status.error_message();
  EXPECT_EQ(imported.reply.layers(1).token_count(), 25);
  EXPECT_EQ(imported.reply.layers(1).log_length(), 0);
  for (int t = 0; t < 20; ++t) {
    const auto both = caller_.Decode(DecodeOf({"a", "b"}, 1, std::vector<Tokens>(2, inputs_.Token(25 + t))));
    ASSERT_TRUE(both.ok()) << both.status.error_message();
    const std::vector<float> outputs = Floats(both.reply.output());
    EXPECT_LE(RelativeNormError({outputs.data() + 64, 64}, absl::Span<const float>{outputs.data(), 64}),
              kSplitTolerance);
  }
}

TEST_F(StateTransfer, TheMaterialisedStateIsTransformersFinalState) {
  const SafetensorsFile io = SafetensorsFile::Open(GoldenPath(std::string(kSet) + "/io.safetensors")).value();
  for (int layer = 0; layer < 3; ++layer) {
    const std::string prefix = "layer." + std::to_string(layer) + ".";
    const Tokens inputs = GoldenInputs(kSet, layer);
    const std::string id = "s" + std::to_string(layer);
    ASSERT_TRUE(caller_.Create(id, "m").ok());
    ASSERT_TRUE(caller_.Prefill(PrefillOf(id, layer, inputs.Slice(0, 150))).ok());
    ASSERT_TRUE(caller_.Decode(DecodeOf({id}, layer, {inputs.Slice(150, 8)})).ok());
    const auto exported = caller_.Export(id, /*include_recurrent_state=*/true);
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

TEST_F(StateTransfer, ADamagedFileMakesNoSession) {
  MakeUneven(caller_, "a");
  const std::string file = caller_.State("a");
  const int64_t used = caller_.Info().reply.state_bytes_used();
  std::string bad_header = file;
  bad_header[9] = '#';
  const std::vector<std::string> damaged = {
      "",
      file.substr(0, 5),
      file.substr(0, file.size() / 2),
      file.substr(0, file.size() - 1),
      file + "x",
      bad_header,
      std::string(64, '\xff'),
      Rewrite(file, {{"layer.0.recurrent_state", "layer.0.recurrent_state"}}, {}),
      Rewrite(file, {}, {{"format", "something else"}}),
  };
  for (size_t i = 0; i < damaged.size(); ++i) {
    const auto refused = caller_.Import("b", "m", damaged[i]);
    EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::DATA_LOSS) << i;
    EXPECT_EQ(refused.reason(), "INVALID_STATE_FILE") << i;
    EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND") << i;
  }
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), used);
  EXPECT_TRUE(caller_.Import("b", "m", file).ok()) << "the id is still free";
}

TEST_F(StateTransfer, AnotherModelsFileIsRefusedNamingTheField) {
  MakeUneven(caller_, "a");
  const std::string file = caller_.State("a");
  const auto other_model = caller_.Import("b", "other", file);
  EXPECT_EQ(other_model.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(other_model.reason(), "STATE_MISMATCH");
  EXPECT_EQ(other_model.metadata("field"), "model_fingerprint");
  EXPECT_NE(other_model.metadata("found"), other_model.metadata("expected"));

  ASSERT_TRUE(caller_.CreateOperator("op", SmallOperator(2)).ok());
  const std::string operator_file = caller_.State("op");
  v1::ImportStateRequest::Target target;
  target.set_session_id("b");
  *target.mutable_operator_() = SmallOperator(2);
  EXPECT_TRUE(caller_.Import(target, operator_file).ok());
  target.set_session_id("c");
  target.mutable_operator_()->set_value_dim(8);
  const auto other_dims = caller_.Import(target, operator_file);
  EXPECT_EQ(other_dims.reason(), "STATE_MISMATCH");
  EXPECT_EQ(other_dims.metadata("field"), "dims");
  EXPECT_THAT(other_dims.metadata("expected"), HasSubstr("V=8"));
  EXPECT_EQ(caller_.Get("c").reason(), "SESSION_NOT_FOUND");
}

TEST_F(StateTransfer, ImportsThatBreakTheProtocolAreRefused) {
  MakeUneven(caller_, "a");
  const std::string file = caller_.State("a");
  const auto import = [&](const std::vector<v1::ImportStateRequest>& messages) {
    Outcome<v1::Session> outcome;
    grpc::ClientContext context;
    v1::ImportStateResponse response;
    const auto writer = server_.stub().ImportState(&context, &response);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;
    }
    writer->WritesDone();
    outcome.status = writer->Finish();
    return outcome;
  };
  v1::ImportStateRequest target, data, unknown_model, no_spec, bad_id, taken;
  target.mutable_target()->set_model("models/m");
  target.mutable_target()->set_session_id("b");
  data.set_data(file);
  unknown_model.mutable_target()->set_model("models/none");
  no_spec.mutable_target()->set_session_id("b");
  bad_id.mutable_target()->set_session_id("b b");
  bad_id.mutable_target()->set_model("models/m");
  taken = target;
  taken.mutable_target()->set_session_id("a");
  EXPECT_EQ(import({}).reason(), "INVALID_SPEC");
  EXPECT_EQ(import({data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(import({target, target}).reason(), "INVALID_SPEC");
  EXPECT_EQ(import({target, v1::ImportStateRequest()}).reason(), "INVALID_SPEC");
  EXPECT_EQ(import({no_spec, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(import({unknown_model, data}).reason(), "MODEL_NOT_FOUND");
  EXPECT_EQ(import({bad_id, data}).reason(), "INVALID_NAME");
  EXPECT_EQ(import({taken, data}).reason(), "SESSION_EXISTS");
  EXPECT_EQ(import({target}).reason(), "INVALID_STATE_FILE");
  std::vector<v1::ImportStateRequest> endless = {target};
  for (int i = 0; i < 40; ++i) {
    endless.emplace_back();
    endless.back().set_data(std::string(size_t{1} << 18, 'x'));
  }
  EXPECT_EQ(import(endless).reason(), "MESSAGE_TOO_LARGE");
  EXPECT_TRUE(import({target, data}).status.ok());
  EXPECT_EQ(import({target, data}).status.error_code(), grpc::StatusCode::ALREADY_EXISTS) << "even the same file";
}

TEST_F(StateTransfer, PiecesAreInOrderAndSayTheWhole) {
  v1::OperatorSpec spec;  // half a megabyte a layer
  spec.set_key_heads(2);
  spec.set_value_heads(8);
  spec.set_key_dim(128);
  spec.set_value_dim(128);
  spec.set_layer_count(5);
  v1::CreateSessionRequest create;
  create.set_session_id("big");
  *create.mutable_operator_() = spec;
  for (int layer = 0; layer < 5; ++layer) create.add_initial_states()->set_layer(layer);
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
    file += piece.data();
    EXPECT_GT(piece.total_bytes(), 5 * 8 * 128 * 128 * 4);
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(piece.total_bytes(), static_cast<int64_t>(file.size()));
  EXPECT_GE(pieces, 3);
  EXPECT_TRUE(SafetensorsFile::Parse(file).ok());
}

TEST_F(StateTransfer, ExportsWhileOthersDecodeAreWholeAndAlike) {
  MakeUneven(caller_, "quiet");
  const std::string file = caller_.State("quiet");
  ASSERT_TRUE(caller_.Create("loud", "m").ok());
  std::thread decoder([&] {
    for (int t = 0; t < 60; ++t) EXPECT_TRUE(caller_.Decode(DecodeOf({"loud"}, 0, {inputs_.Token(t)})).ok());
  });
  for (int i = 0; i < 20; ++i) EXPECT_EQ(caller_.State("quiet"), file);
  decoder.join();
  EXPECT_EQ(caller_.TokenCount("loud", 0), 60);
}

}  // namespace
}  // namespace gdn
