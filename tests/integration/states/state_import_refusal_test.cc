// ImportState: a file that is damaged, cut or of something else makes no session.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "tests/integration/support/state_transfer_fixture.h"

namespace gdn::state_import_refusal_test {
namespace {

using ::testing::HasSubstr;

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
      EXPECT_TRUE(RefusedAs(caller_.Import(target, damaged[i]), "INVALID_STATE_FILE")) << i;
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
  EXPECT_EQ(caller_.Import({TargetOf("b", "m"), first, wrong}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(caller_.Import({TargetOf("b", "m"), first}).reason(), "INVALID_STATE_FILE") << "cut, and no size was said";
  EXPECT_EQ(caller_.Import({TargetOf("b", "m", size), first}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(caller_.Import({TargetOf("b", "m", size - 1), first, second}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(caller_.Import({TargetOf("b", "m", size + 1), first, second}).reason(), "INVALID_STATE_FILE");
  EXPECT_EQ(caller_.Get("b").reason(), "SESSION_NOT_FOUND");
  EXPECT_TRUE(caller_.Import({TargetOf("b", "m", size), first, second}).ok());
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
  EXPECT_TRUE(RefusedAs(other_model, "STATE_MISMATCH", {{"field", "model_fingerprint"}}));
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
  const auto refused = caller_.Import({TargetOf("b", "other", size), DataOf(header)}, /*end=*/false);
  EXPECT_EQ(refused.reason(), "STATE_MISMATCH");
  EXPECT_EQ(refused.metadata("field"), "model_fingerprint");
  EXPECT_EQ(caller_.Import({TargetOf("b", "m", int64_t{1} << 40)}, /*end=*/false).reason(), "MESSAGE_TOO_LARGE");
  EXPECT_EQ(caller_.Import({TargetOf("a", "m", size)}, /*end=*/false).reason(), "SESSION_EXISTS");
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
  EXPECT_EQ(caller_.Import(std::vector<v1::ImportStateRequest>()).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({target, target}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({target, v1::ImportStateRequest()}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({no_spec, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({bad_size, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({bad_ttl, data}).reason(), "INVALID_SPEC");
  EXPECT_EQ(caller_.Import({TargetOf("b", "none"), data}).reason(), "MODEL_NOT_FOUND");
  EXPECT_EQ(caller_.Import({TargetOf("b b", "m"), data}).reason(), "INVALID_NAME");
  EXPECT_EQ(caller_.Import({TargetOf("a", "m"), data}).reason(), "SESSION_EXISTS");
  EXPECT_EQ(caller_.Import({target}).reason(), "INVALID_STATE_FILE");
  std::vector<v1::ImportStateRequest> endless = {target};
  for (int i = 0; i < 80; ++i) endless.push_back(DataOf(std::string(size_t{1} << 18, 'x')));
  EXPECT_EQ(caller_.Import(endless).reason(), "MESSAGE_TOO_LARGE");
  EXPECT_TRUE(caller_.Import({target, data}).ok());
  EXPECT_EQ(caller_.Import({target, data}).status.error_code(), grpc::StatusCode::ALREADY_EXISTS)
      << "even the same file";
}

}  // namespace
}  // namespace gdn::state_import_refusal_test
