// State files that released versions wrote are imported, and their sessions go on from where they were.
#include <google/protobuf/util/json_util.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "base/files/safetensors.h"
#include "state_store/state_file/image.h"
#include "tests/compatibility/fixtures.h"
#include "tests/support/temp_folder.h"
#include "tests/support/test_backend.h"

namespace gdn::state_files_test {
namespace {

using nlohmann::json;

// bfloat16 bases are rounded; one that another order of sums rounds the other way is half a percent away.
constexpr double kBf16Tolerance = 1e-2;

class StateFiles : public ::testing::TestWithParam<std::tuple<std::string, std::string>> {
 protected:
  void SetUp() override {
    if (!MakeBackend(backend()).ok()) GTEST_SKIP() << "there is no " << backend();
  }
  static std::string version() { return std::get<0>(GetParam()); }
  static std::string backend() { return std::get<1>(GetParam()); }

  static std::string File(const json& name) {
    return ReadFile(FixturePath(version(), "states/" + name.get<std::string>()));
  }
  static DType DtypeOf(const json& entry) { return entry["state_dtype"] == "bf16" ? DType::kBF16 : DType::kF32; }

  // Returns the server for files of this kind.
  TestServer& ServerFor(const json& entry) {
    const std::string kind = json{entry["state_dtype"], entry["models"], entry.value("heads", "")}.dump();
    std::unique_ptr<TestServer>& server = servers_[kind];
    if (server == nullptr) {
      GdnServerOptions options;
      for (const auto& [name, set] : entry["models"].items()) options.models.emplace_back(name, GoldenPath(set));
      options.states.state_dtype = DtypeOf(entry);
      if (entry.contains("heads")) options.load.heads = ParseHeadSlice(entry["heads"].get<std::string>()).value();
      server = std::make_unique<TestServer>(std::move(options), MakeBackend(backend()).value());
    }
    return *server;
  }

  static v1::ImportStateRequest::Target TargetOf(const json& session, bool convert = false) {
    v1::ImportStateRequest::Target target;
    EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(session["spec"].dump(), &target).ok());
    target.set_session_id(session["name"]);
    target.set_convert_state_dtype(convert);
    return target;
  }

  std::map<std::string, std::unique_ptr<TestServer>> servers_;
};

TEST_P(StateFiles, AreImportedAndTheirSessionsGoOn) {
  const json manifest = JsonOf(FixturePath(version(), "manifest.json"));
  std::map<std::string, json> sessions;
  for (const json& entry : manifest["state_files"]) {
    SCOPED_TRACE(entry["file"].get<std::string>());
    const std::string file = File(entry["file"]);
    EXPECT_EQ(SafetensorsFile::Parse(file).value().metadata().at("format_version"),
              entry["format_version"].get<std::string>());
    json session = entry.value("session", json());
    if (entry.contains("same_session_as")) session = sessions.at(entry["same_session_as"]);
    if (session.is_null()) continue;  // what deltas refer to
    sessions[entry["file"]] = session;
    std::string whole = file;
    if (entry.contains("delta_to")) whole = MergeDelta(File(entry["delta_to"]), file).value();
    const Caller caller(ServerFor(entry));
    ASSERT_REPLY(const auto imported, caller.Import(TargetOf(session), whole));
    ExpectSession(caller, session,
                  {.numerics_id = entry["numerics_id"],
                   .tolerance = DtypeOf(entry) == DType::kBF16 ? kBf16Tolerance : kSplitTolerance});
    ASSERT_TRUE(caller.Delete(session["name"]).ok());
  }
}

// Files with states of the other dtype are refused unless the caller asks to convert (docs/reference/state-files.md).
TEST_P(StateFiles, OfTheOtherDtypeAreTakenIfAskedFor) {
  const json manifest = JsonOf(FixturePath(version(), "manifest.json"));
  for (const json& entry : manifest["state_files"]) {
    if (!entry.contains("session") || entry.contains("delta_to") || entry.contains("heads")) continue;
    SCOPED_TRACE(entry["file"].get<std::string>());
    json other = entry;
    other["state_dtype"] = DtypeOf(entry) == DType::kBF16 ? "float32" : "bf16";
    const json& session = entry["session"];
    const Caller caller(ServerFor(other));
    const std::string file = File(entry["file"]);
    EXPECT_TRUE(RefusedAs(caller.Import(TargetOf(session), file), "STATE_MISMATCH", {{"field", "base_dtype"}}));
    ASSERT_TRUE(caller.Import(TargetOf(session, /*convert=*/true), file).ok());
    ExpectSession(caller, session, {.numerics_id = "none: it is converted", .tolerance = kBf16Tolerance});
    ASSERT_TRUE(caller.Delete(session["name"]).ok());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, StateFiles, ::testing::Combine(::testing::ValuesIn(FixtureVersions()), ::testing::ValuesIn(FixtureBackends())),
    [](const auto& tested) { return TestNameOf(std::get<0>(tested.param)) + "_on_" + std::get<1>(tested.param); });

}  // namespace
}  // namespace gdn::state_files_test
