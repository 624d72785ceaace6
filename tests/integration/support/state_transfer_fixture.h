// Fixture for tests of ExportState and ImportState: a server with two models, a session whose layers have seen
// different numbers of tokens, its file, and imports that are sent message by message.
//
// Thread safety: for one thread; caller_ from any. Ownership: the fixture owns its server.
//
//   TEST_F(StateTransfer, GoesOnInTheSameServer) {
//     MakeUneven(caller_, "a");
//     ASSERT_TRUE(caller_.Import("b", "m", File("a")).ok());
//     EXPECT_EQ(GoOn(caller_, "b"), GoOn(caller_, "a"));
//   }
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/files/safetensors.h"
#include "base/hash.h"
#include "tests/integration/support/service_helpers.h"

namespace gdn {

class StateTransfer : public ::testing::Test {
 protected:
  static constexpr char kSet[] = "qwen3_5_5";

  // Makes a session with different layers: layer 0 prefilled, layer 1 with a log, layer 2 decoded past a fold.
  void MakeUneven(const Caller& caller, const std::string& id) {
    ASSERT_TRUE(caller.Create(id, "m").ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, 0, inputs_.Slice(0, 37))).ok());
    ASSERT_TRUE(caller.Prefill(PrefillOf(id, 1, inputs_.Slice(0, 20))).ok());
    for (int t = 0; t < 5; ++t) ASSERT_TRUE(caller.Decode(DecodeOf({id}, 1, {inputs_.Token(20 + t)})).ok());
    for (int t = 0; t < 5; ++t) ASSERT_TRUE(caller.Decode(DecodeOf({id}, 2, {inputs_.Slice(4 * t, 4)})).ok());
  }

  // Decodes every layer past a fold, prefills every layer, and returns all outputs.
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

  // Returns `file` with renamed tensors and changed metadata, without checksums, as another tool might write it.
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

}  // namespace gdn
