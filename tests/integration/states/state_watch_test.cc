// WatchState: snapshots that add up to the session, when they come, and when they end.
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "client/cpp/client.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/step_parts.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_watch_test {
namespace {

constexpr char kSet[] = "qwen3_5_5";

// All of a state file but what every file has for itself.
std::map<std::string, std::string> ContentsOf(const std::string& bytes) {
  const SafetensorsFile file = SafetensorsFile::Parse(bytes).value();
  std::map<std::string, std::string> contents = file.metadata();
  for (const char* own : {"snapshot_id", "created", "header_checksum"}) contents.erase(own);
  for (const auto& [name, entry] : file.entries()) {
    std::string& content = contents["tensor " + name];
    content = entry.dtype;
    for (const int64_t dim : entry.shape) content += "," + std::to_string(dim);
    content += ":" + std::string(file.Bytes(name).value());
  }
  return contents;
}

class StateWatching : public ::testing::Test {
 protected:
  static v1::WatchStateRequest EveryTokens(int32_t tokens) {
    v1::WatchStateRequest request;
    request.set_name("sessions/a");
    request.set_every_tokens(tokens);
    return request;
  }

  StateWatch Watch(const v1::WatchStateRequest& request) { return client_.WatchState(request).value(); }

  // The next snapshot as a full file: with the last full one where it is a delta.
  std::string NextFile(StateWatch& watch) {
    auto snapshot = watch.Next();
    EXPECT_TRUE(snapshot.ok()) << snapshot.status();
    if (!snapshot.ok()) return {};
    deltas_ += snapshot->delta ? 1 : 0;
    last_bytes_ = snapshot->file.size();
    if (!snapshot->delta) {
      full_ = std::move(snapshot->file);
      return full_;
    }
    EXPECT_EQ(ReadOf(snapshot->file).base_snapshot_id, ReadOf(full_).snapshot_id);
    const auto merged = MergeDelta(full_, snapshot->file);
    EXPECT_TRUE(merged.ok()) << merged.status();
    return merged.value_or("");
  }

  static StateFile ReadOf(const std::string& bytes) {
    return ParseStateFileHeader(bytes, static_cast<int64_t>(bytes.size())).value();
  }
  static int64_t CountOf(const std::string& bytes, int32_t layer) {
    for (const StateFileLayer& read : ReadOf(bytes).layers) {
      if (read.layer == layer) return read.extent.token_count;
    }
    return 0;
  }

  // More than one Decode takes come as a prefill: one call, so that no snapshot falls between.
  void Decode(int layer, int64_t tokens) {
    if (tokens > StepLimits().max_draft) {
      const auto prefilled = caller_.Prefill(PrefillOf("a", layer, inputs_.Slice(taken_, tokens)));
      EXPECT_TRUE(prefilled.ok()) << prefilled.status.error_message();
      taken_ += tokens;
      return;
    }
    const auto reply = caller_.Decode(DecodeOf({"a"}, layer, {inputs_.Slice(taken_, tokens)}));
    EXPECT_TRUE(reply.ok()) << reply.status.error_message();
    taken_ += tokens;
  }
  std::string Exported() {
    const auto exported = caller_.Export("a");
    EXPECT_TRUE(exported.ok()) << exported.status.error_message();
    return exported.reply;
  }

  TestServer server_{{.models = {{"m", GoldenPath(kSet)}}}};
  const Caller caller_{server_};
  Client client_{v1::GdnService::NewStub(server_.channel())};
  const Tokens inputs_ = GoldenInputs(kSet, 0);
  int64_t taken_ = 0;
  std::string full_;
  int deltas_ = 0;
  size_t last_bytes_ = 0;
};

TEST_F(StateWatching, SnapshotsAddUpToWhatAnExportHolds) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 0, inputs_.Slice(0, 37))).ok());
  ASSERT_TRUE(caller_.Prefill(PrefillOf("a", 1, inputs_.Slice(0, 20))).ok());
  StateWatch watch = Watch(EveryTokens(4));
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  EXPECT_EQ(deltas_, 0) << "the first is full";
  const size_t full_bytes = last_bytes_;

  Decode(0, 4);  // into the log
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  EXPECT_EQ(deltas_, 1);
  EXPECT_LT(last_bytes_, full_bytes / 2) << "without the bases";
  Decode(1, 4);
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  EXPECT_EQ(deltas_, 2);
  Decode(2, 5);  // a layer that the full file does not have
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  Decode(1, 13);  // over a fold, so layer 1 has another base
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  Decode(0, 16);
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  // Whatever the server makes of bases that change, the stream stays whole.
  for (int step = 0; step < 8; ++step) {
    Decode(step % 3, 7);
    EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported())) << step;
  }
}

TEST_F(StateWatching, StepsBringSnapshotsAsOtherCallsDo) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  ASSERT_TRUE(caller_.Create("beside", "m").ok());
  StateWatch watch = Watch(EveryTokens(3));
  NextFile(watch);
  const auto step = [&](StepPart part, int64_t tokens) {
    part.tokens = inputs_.Slice(taken_, tokens);
    const StepPart other = {.id = "beside", .tokens = inputs_.Slice(0, 5), .kind = v1::STEP_KIND_PREFILL};
    ASSERT_REPLY(const auto reply, caller_.Step(StepOf({part, other})));
    taken_ += tokens;
  };
  step({.id = "a"}, 4);
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  step({.id = "a", .kind = v1::STEP_KIND_PREFILL}, 20);
  EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  step({.id = "a", .kind = v1::STEP_KIND_DRAFT}, 4);
  step({.id = "a", .kind = v1::STEP_KIND_DRAFT, .accept = 3},
       2);  // the accepted tokens bring a snapshot, with the new draft
  const std::string file = NextFile(watch);
  EXPECT_EQ(ContentsOf(file), ContentsOf(Exported()));
  EXPECT_EQ(CountOf(file, 0), 4 + 20 + 3);
}

TEST_F(StateWatching, AStandbyGoesOnFromTheLastSnapshotToTheBit) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  StateWatch watch = Watch(EveryTokens(3));
  NextFile(watch);
  Decode(0, 19);
  NextFile(watch);
  Decode(0, 3);
  const std::string file = NextFile(watch);
  ASSERT_TRUE(caller_.Import("standby", "m", file).ok());
  for (int t = 0; t < 20; ++t) {
    ASSERT_REPLY(const auto both,
                 caller_.Decode(DecodeOf({"a", "standby"}, 0, std::vector<Tokens>(2, inputs_.Token(taken_ + t)))));
    EXPECT_EQ(RowBytes(both.output(), 0), RowBytes(both.output(), 1));
  }
}

TEST_F(StateWatching, SnapshotsAreAsManyTokensApartAsAskedFor) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  StateWatch watch = Watch(EveryTokens(4));
  std::vector<int64_t> counts = {CountOf(NextFile(watch), 0)};
  EXPECT_EQ(counts[0], 0);
  for (int round = 0; round < 3; ++round) {
    const int64_t last = counts.back();
    // The fourth token is the one that brings a snapshot; more may be in it by then.
    for (int t = 0; t < 6; ++t) Decode(0, 1);
    while (taken_ - counts.back() >= 4) counts.push_back(CountOf(NextFile(watch), 0));
    EXPECT_GT(counts.back(), last);
  }
  for (size_t i = 1; i < counts.size(); ++i) EXPECT_GE(counts[i] - counts[i - 1], 4);
}

TEST_F(StateWatching, ASnapshotComesAfterATimeOnceTheSessionHasMoved) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  v1::WatchStateRequest request;
  request.set_name("sessions/a");
  request.mutable_every()->set_nanos(1'000'000);
  StateWatch watch = Watch(request);
  NextFile(watch);
  for (int t = 0; t < 3; ++t) {
    Decode(0, 1);
    EXPECT_EQ(ContentsOf(NextFile(watch)), ContentsOf(Exported()));
  }
}

TEST_F(StateWatching, ARollbackBringsASnapshotOfTheNewEpoch) {
  const std::string folder = ::testing::TempDir() + "state_watch_disk";
  TestServer durable({.models = {{"m", GoldenPath(kSet)}}, .states = {.disk = {.directory = folder}}});
  const Caller caller(durable);
  Client client(v1::GdnService::NewStub(durable.channel()));
  ASSERT_TRUE(caller.Create("a", "m").ok());
  ASSERT_TRUE(caller.Decode(DecodeOf({"a"}, 0, {inputs_.Slice(0, 2)})).ok());
  ASSERT_TRUE(caller.Checkpoint("a").ok());
  StateWatch watch = client.WatchState(EveryTokens(100)).value();
  ASSERT_TRUE(watch.Next().ok());
  ASSERT_TRUE(caller.Decode(DecodeOf({"a"}, 0, {inputs_.Slice(2, 3)})).ok());
  ASSERT_TRUE(caller.Restore("a").ok());
  const auto snapshot = watch.Next();
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  EXPECT_EQ(ReadOf(snapshot->file).header.epoch, 2);
  EXPECT_EQ(CountOf(snapshot->file, 0), 2);
  ASSERT_TRUE(caller.Delete("a").ok());
}

TEST_F(StateWatching, EndsWithTheSession) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  StateWatch watch = Watch(EveryTokens(4));
  NextFile(watch);
  ASSERT_TRUE(caller_.Delete("a").ok());
  const absl::Status end = watch.Next().status();
  ExpectError(end, absl::StatusCode::kNotFound, reason::kSessionNotFound);
}

TEST_F(StateWatching, EndsWithTheServer) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  StateWatch watch = Watch(EveryTokens(4));
  NextFile(watch);
  EXPECT_TRUE(server_.server().rpc().Stop(absl::Seconds(60)));
  const absl::Status end = watch.Next().status();
  EXPECT_EQ(end.code(), absl::StatusCode::kUnavailable) << end;
}

TEST_F(StateWatching, OneWatcherGoneLeavesTheOthers) {
  ASSERT_TRUE(caller_.Create("a", "m").ok());
  StateWatch stays = Watch(EveryTokens(2));
  {
    StateWatch goes = Watch(EveryTokens(2));
    ASSERT_TRUE(goes.Next().ok());
  }
  NextFile(stays);
  Decode(0, 2);
  EXPECT_EQ(CountOf(NextFile(stays), 0), 2);
}

}  // namespace
}  // namespace gdn::state_watch_test
