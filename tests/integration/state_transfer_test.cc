// ExportState and ImportState: a session goes on elsewhere to the bit, and a bad file makes no session.
// state_watch_test.cc has WatchState.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/hash.h"
#include "base/safetensors.h"
#include "tests/integration/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn {
namespace {

using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

constexpr char kSet[] = "qwen3_5_5";

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

  // `file` with other tensors or metadata, as a tool might write it: without checksums.
  static std::string Rewrite(const std::string& file, const std::map<std::string, std::string>& renamed,
                             const std::map<std::string, std::string>& changed_metadata) {
    const SafetensorsFile parsed = SafetensorsFile::Parse(file).value();
    std::vector<NamedTensor> tensors;
    for (const auto& [from, to] : renamed) tensors.push_back({to, parsed.Tensor(from).value()});
    auto metadata = Unsealed(parsed);
    for (const auto& [key, value] : changed_metadata) metadata[key] = value;
    return SerializeSafetensors(tensors, metadata).value();
  }

  static std::map<std::string, std::string> Unsealed(const SafetensorsFile& file) {
    auto metadata = file.metadata();
    metadata.erase("checksums");
    metadata.erase("header_checksum");
    metadata["format_version"] = "1";
    return metadata;
  }

  std::string File(const std::string& id) {
    const auto exported = caller_.Export(id);
    EXPECT_TRUE(exported.ok()) << exported.status.error_message();
    return exported.reply;
  }

  // Sends the messages, and with `end` says that these were all.
  Outcome<v1::Session> Send(const std::vector<v1::ImportStateRequest>& messages, bool end = true) {
    Outcome<v1::Session> outcome;
    grpc::ClientContext context;
    v1::ImportStateResponse response;
    const auto writer = server_.stub().ImportState(&context, &response);
    for (const auto& message : messages) {
      if (!writer->Write(message)) break;
    }
    if (end) writer->WritesDone();
    outcome.status = writer->Finish();
    outcome.reply = response.session();
    return outcome;
  }
  static v1::ImportStateRequest TargetOf(const std::string& id, const std::string& model, int64_t total_bytes = 0) {
    v1::ImportStateRequest message;
    message.mutable_target()->set_session_id(id);
    message.mutable_target()->set_model("models/" + model);
    message.mutable_target()->set_total_bytes(total_bytes);
    return message;
  }
  static v1::ImportStateRequest DataOf(const std::string& data) {
    v1::ImportStateRequest message;
    message.set_data(data);
    message.set_checksum(Hash64(data));
    return message;
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}, {"other", GoldenPath("qwen3_next_5")}}}};
  const Caller caller_{server_};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

TEST_F(StateTransfer, ASessionGoesOnInAnotherServerToTheBit) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
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
  const auto full = caller_.Export("a", /*include_recurrent_state=*/true);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(names(full.reply).size(), 14u);
  const SafetensorsFile file = SafetensorsFile::Parse(full.reply).value();
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

TEST_F(StateTransfer, ADraftAndStoredRepliesTravelToo) {
  MakeUneven(caller_, "a");
  v1::DecodeRequest stored = DecodeOf({"a"}, 0, {inputs_.Slice(37, 3)});
  stored.set_request_id("once");
  const auto answered = caller_.Decode(stored);
  ASSERT_TRUE(answered.ok()) << answered.status.error_message();
  v1::DecodeRequest draft = DecodeOf({"a"}, 1, {inputs_.Slice(25, 4)});
  draft.set_draft(true);
  ASSERT_TRUE(caller_.Decode(draft).ok());

  TestServer second({.models = {{"m", GoldenPath(kSet)}}, .threads = 1});
  const Caller elsewhere(second);
  const auto imported = elsewhere.Import("a", "m", File("a"));
  ASSERT_TRUE(imported.ok()) << imported.status.error_message();
  EXPECT_EQ(imported.reply.layers(0).token_count(), 40);
  EXPECT_EQ(imported.reply.layers(1).token_count(), 25);
  EXPECT_EQ(imported.reply.layers(1).draft_length(), 4);
  EXPECT_EQ(elsewhere.State("a"), caller_.State("a"));
  const auto retried = elsewhere.Decode(stored);
  ASSERT_TRUE(retried.ok()) << retried.status.error_message();
  EXPECT_EQ(retried.reply.output().data(), answered.reply.output().data());
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
  const auto full = caller_.Export("a", /*include_recurrent_state=*/true);
  ASSERT_TRUE(full.ok());
  v1::ExportStateRequest request;
  request.set_name("sessions/a");
  request.set_include_recurrent_state(true);
  const auto download = [&](std::string* file) {
    grpc::ClientContext context;
    const auto reader = server_.stub().ExportState(&context, request);
    v1::ExportStateResponse piece;
    while (reader->Read(&piece)) *file += piece.data();
    return reader->Finish();
  };
  request.set_recurrent_state_dtype(v1::DTYPE_BF16);
  std::string bytes;
  ASSERT_TRUE(download(&bytes).ok());
  const SafetensorsFile narrow = SafetensorsFile::Parse(bytes).value();
  const SafetensorsFile wide = SafetensorsFile::Parse(full.reply).value();
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
  const grpc::Status refused = download(&bytes);
  EXPECT_EQ(ErrorInfoOf(refused).reason(), "INVALID_TENSOR_DTYPE");
}

TEST_F(StateTransfer, ADamagedFileMakesNoSession) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  const int64_t used = caller_.Info().reply.state_bytes_used();
  std::vector<std::string> damaged = {
      "",
      file.substr(0, 5),
      file.substr(0, file.size() / 2),
      file.substr(0, file.size() - 1),
      file + "x",
      std::string(64, '\xff'),
      Rewrite(file, {{"layer.0.recurrent_state", "layer.0.recurrent_state"}}, {}),
      Rewrite(file, {}, {{"format", "something else"}}),
  };
  // One bit of the header's length, of its text, and of each tensor.
  const auto flip = [&](size_t at) {
    damaged.push_back(file);
    damaged.back()[at] = static_cast<char>(damaged.back()[at] ^ 4);
  };
  for (const size_t at : {0, 7, 9, 300}) flip(at);
  const size_t data = SafetensorsHeaderEnd(file).value();
  const SafetensorsFile parsed = SafetensorsFile::Parse(file).value();
  for (const auto& [name, entry] : parsed.entries()) flip(data + (entry.begin + entry.end) / 2);
  for (size_t i = 0; i < damaged.size(); ++i) {
    for (const bool sized : {false, true}) {
      v1::ImportStateRequest::Target target = TargetOf("b", "m").target();
      if (sized) target.set_total_bytes(static_cast<int64_t>(damaged[i].size()));
      const auto refused = caller_.Import(target, damaged[i]);
      EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::DATA_LOSS) << i;
      EXPECT_EQ(refused.reason(), "INVALID_STATE_FILE") << i;
      EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND") << i;
    }
  }
  EXPECT_EQ(caller_.Info().reply.state_bytes_used(), used);
  EXPECT_TRUE(caller_.Import("b", "m", file).ok()) << "the id is still free";
}

TEST_F(StateTransfer, PiecesDamagedOnTheirWayMakeNoSession) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  const auto size = static_cast<int64_t>(file.size());
  const v1::ImportStateRequest first = DataOf(file.substr(0, file.size() / 2));
  const v1::ImportStateRequest second = DataOf(file.substr(file.size() / 2));
  v1::ImportStateRequest wrong = second;
  wrong.set_checksum(second.checksum() ^ 1);
  EXPECT_EQ(Send({TargetOf("b", "m"), first, wrong}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(Send({TargetOf("b", "m"), first}).reason(), "INVALID_STATE_FILE") << "cut, and no size was said";
  EXPECT_EQ(Send({TargetOf("b", "m", size), first}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(Send({TargetOf("b", "m", size - 1), first, second}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(Send({TargetOf("b", "m", size + 1), first, second}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(Send({TargetOf("b", "m", size), first, second}).ok());
  EXPECT_EQ(caller_.State("b"), caller_.State("a"));
}

TEST_F(StateTransfer, AnImportThatIsCancelledMakesNoSession) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  grpc::ClientContext context;
  v1::ImportStateResponse response;
  const auto writer = server_.stub().ImportState(&context, &response);
  ASSERT_TRUE(writer->Write(TargetOf("b", "m")));
  ASSERT_TRUE(writer->Write(DataOf(file.substr(0, file.size() / 2))));
  CancelAndSettle(caller_, context);
  EXPECT_EQ(writer->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(caller_.Import("b", "m", file).ok()) << "the id is still free";
}

TEST_F(StateTransfer, AnotherModelsFileIsRefusedNamingTheField) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  const auto other_model = caller_.Import("b", "other", file);
  EXPECT_EQ(other_model.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_EQ(other_model.reason(), "STATE_MISMATCH");
  EXPECT_EQ(other_model.metadata("field"), "model_fingerprint");
  EXPECT_NE(other_model.metadata("found"), other_model.metadata("expected"));

  ASSERT_TRUE(caller_.CreateOperator("op", SmallOperator(2)).ok());
  const std::string operator_file = File("op");
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

TEST_F(StateTransfer, AFileThatDoesNotFitIsRefusedByItsHeader) {
  MakeUneven(caller_, "a");
  const std::string file = File("a");
  const std::string header = file.substr(0, SafetensorsHeaderEnd(file).value());
  const auto size = static_cast<int64_t>(file.size());
  // Nothing but the header is sent, and the stream is left open: the answer does not wait for more.
  const auto refused = Send({TargetOf("b", "other", size), DataOf(header)}, /*end=*/false);
  EXPECT_EQ(refused.reason(), "STATE_MISMATCH");
  EXPECT_EQ(refused.metadata("field"), "model_fingerprint");
  EXPECT_EQ(Send({TargetOf("b", "m", int64_t{1} << 40)}, /*end=*/false).reason(), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(Send({TargetOf("a", "m", size)}, /*end=*/false).reason(), "SESSION_EXISTS");
}

TEST_F(StateTransfer, ImportsThatBreakTheProtocolAreRefused) {
  MakeUneven(caller_, "a");
  const v1::ImportStateRequest target = TargetOf("b", "m");
  v1::ImportStateRequest data, no_spec, bad_size, bad_ttl;
  data.set_data(File("a"));
  no_spec.mutable_target()->set_session_id("b");
  bad_size = TargetOf("b", "m", -1);
  bad_ttl = target;
  bad_ttl.mutable_target()->mutable_idle_ttl()->set_seconds(-1);
  EXPECT_EQ(Send({}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({target, target}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({target, v1::ImportStateRequest()}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({no_spec, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({bad_size, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({bad_ttl, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(Send({TargetOf("b", "none"), data}).reason(), "MODEL_NOT_FOUND");
  EXPECT_EQ(Send({TargetOf("b b", "m"), data}).reason(), "INVALID_NAME");
  EXPECT_EQ(Send({TargetOf("a", "m"), data}).reason(), "SESSION_EXISTS");
  EXPECT_EQ(Send({target}).reason(), "INVALID_STATE_FILE");
  std::vector<v1::ImportStateRequest> endless = {target};
  for (int i = 0; i < 80; ++i) endless.push_back(DataOf(std::string(size_t{1} << 18, 'x')));
  EXPECT_EQ(Send(endless).reason(), "MESSAGE_TOO_LARGE");
  EXPECT_TRUE(Send({target, data}).ok());
  EXPECT_EQ(Send({target, data}).status.error_code(), grpc::StatusCode::ALREADY_EXISTS) << "even the same file";
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

}  // namespace
}  // namespace gdn
