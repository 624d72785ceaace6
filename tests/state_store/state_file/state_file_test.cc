// Whole files: what is written is read again, bit for bit, and is named as documented.
#include <bit>
#include <cmath>
#include <functional>
#include <limits>
#include <set>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"

namespace gdn::state_file_test {
namespace {

using ::testing::ElementsAre;

class StateFiles : public ::testing::Test {
 protected:
  absl::StatusOr<SessionImage> Read(const std::string& bytes, int32_t max_draft = 8) {
    const auto owner = std::make_shared<const std::string>(bytes);
    const auto file = ParseStateFile(*owner);
    if (!file.ok()) return file.status();
    return ReadImage(*file, StateLayout::Make(file->header.dims, max_draft).value(), owner);
  }

  TestMemory memory_;
};

TEST_F(StateFiles, SessionsRoundTripBitForBitBetweenAnyLayouts) {
  TestSession model = MakeModelSession();
  std::vector<float>& base = model.layers[1].base;
  base[0] = -0.0f;
  base[1] = std::bit_cast<float>(0x7fc12345u);
  base[2] = -std::numeric_limits<float>::infinity();
  base[3] = std::numeric_limits<float>::denorm_min();
  for (const TestSession& session : {model, MakeOperatorSession()}) {
    for (const TestImageOptions& from : {TestImageOptions{8, false}, TestImageOptions{3, true}}) {
      GDN_ASSERT_OK_AND_ASSIGN(const auto file, EncodeStateFile(MakeImage(session, memory_.host, from), {}));
      const std::string bytes = FileBytes(file);
      for (const TestImageOptions& to : {TestImageOptions{8, false}, TestImageOptions{64, true}}) {
        GDN_ASSERT_OK_AND_ASSIGN(auto image, Read(bytes, to.max_draft));
        ExpectSame(TakeApart(image), session);
        ExpectSame(TakeApart(*MakeImage(TakeApart(image), memory_.host, to)), session);
        // An image that was read from a file is written again like one that was copied from a device.
        image.header.layers = session.header.layers;
        GDN_ASSERT_OK_AND_ASSIGN(const auto again,
                                 EncodeStateFile(std::make_shared<const SessionImage>(std::move(image)), {}));
        ExpectSame(TakeApart(*Read(FileBytes(again))), session);
      }
    }
  }
}

TEST_F(StateFiles, TheOwnerTravelsOnlyWhenAskedFor) {
  TestSession session = MakeModelSession();
  session.header.max_lifetime = absl::Milliseconds(1500);
  session.header.lease = "engine~1";
  session.header.lease_grace = absl::Milliseconds(2500);
  GDN_ASSERT_OK_AND_ASSIGN(const auto with, Read(Encode(session, memory_.host, {.include_owner = true})));
  ExpectSame(TakeApart(with), session, /*owner=*/true);
  const std::string bytes = Encode(session, memory_.host);
  EXPECT_EQ(bytes.find("chat-1"), std::string::npos);
  EXPECT_EQ(bytes.find("ab12"), std::string::npos);
  EXPECT_EQ(bytes.find("engine~1"), std::string::npos);
  const auto file = ParseStateFile(bytes);
  ASSERT_TRUE(file.ok());
  EXPECT_FALSE(file->has_owner);
  EXPECT_EQ(file->layer_count, 12);
  EXPECT_TRUE(file->header.layers.empty());
}

// An export lists them, so that an import makes a session of the same layers.
TEST_F(StateFiles, TheLayersOfAModelsSessionTravelWhenAskedFor) {
  TestSession session = MakeModelSession();
  session.header.layers = {0, 2, 5, 11};
  for (const bool owner : {false, true}) {
    const std::string bytes = Encode(session, memory_.host, {.include_owner = owner, .list_layers = true});
    GDN_ASSERT_OK_AND_ASSIGN(const auto file, ParseStateFile(bytes));
    EXPECT_THAT(file.header.layers, ElementsAre(0, 2, 5, 11));
    EXPECT_EQ(SafetensorsFile::Parse(bytes)->metadata().at("layers"), "[0,2,5,11]");
  }
  const std::string of_operator = Encode(MakeOperatorSession(), memory_.host, {.list_layers = true});
  EXPECT_FALSE(SafetensorsFile::Parse(of_operator)->metadata().contains("layers")) << "layer_count says all";
}

TEST_F(StateFiles, ASessionWithoutAnyStepRoundTrips) {
  TestSession session = MakeModelSession();
  session.layers.clear();
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, ParseStateFile(Encode(session, memory_.host)));
  EXPECT_EQ(file.layer_count, 12);
  EXPECT_TRUE(file.layers.empty());
}

TEST_F(StateFiles, AnImportedStateWithoutTokensRoundTrips) {
  Random random(2);
  TestSession session = MakeModelSession();
  session.layers = {MakeLayer(kModelDims, 1, {}, random)};
  ExpectSame(TakeApart(*Read(Encode(session, memory_.host))), session);
}

TEST_F(StateFiles, AReplyWhoseOutputWasDroppedRoundTripsWithoutIt) {
  TestSession session = MakeModelSession();
  StoredReply reply = *session.layers[1].reply;
  reply.output.clear();
  reply.output_dropped = true;
  session.layers[1].reply = std::make_shared<const StoredReply>(reply);
  const std::string bytes = Encode(session, memory_.host);
  EXPECT_FALSE(SafetensorsFile::Parse(bytes)->Contains("layer.2.reply"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto image, Read(bytes));
  ExpectSame(TakeApart(image), session);
  EXPECT_TRUE(image.layers[1].reply->output_dropped);
}

TEST_F(StateFiles, ADraftWithoutALogRoundTrips) {
  Random random(2);
  TestSession session = MakeModelSession();
  session.layers = {MakeLayer(kModelDims, 3, {.token_count = 5, .draft_length = 8}, random)};
  const std::string bytes = Encode(session, memory_.host, {.include_recurrent_state = true});
  EXPECT_FALSE(SafetensorsFile::Parse(bytes)->Contains("layer.3.recurrent_state")) << "the base is that";
  ExpectSame(TakeApart(*Read(bytes)), session);
  const absl::Status status = Read(bytes, /*max_draft=*/7).status();
  ExpectError(status, absl::StatusCode::kFailedPrecondition, reason::kStateMismatch);
}

TEST_F(StateFiles, TensorsAndMetadataAreNamedAsDocumented) {
  const std::string bytes = Encode(MakeModelSession(), memory_.host, {.include_recurrent_state = true});
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, SafetensorsFile::Parse(bytes));
  std::vector<std::string> names;
  for (const auto& [name, entry] : file.entries()) {
    names.push_back(name);
    EXPECT_EQ(entry.dtype, name.ends_with(".reply") ? "U8" : "F32") << name;
  }
  EXPECT_THAT(names,
              ::testing::UnorderedElementsAre(
                  "layer.0.conv_state", "layer.0.recurrent_state", "layer.2.conv_state", "layer.2.base_state",
                  "layer.2.recurrent_state", "layer.2.log_k", "layer.2.log_u", "layer.2.log_g", "layer.2.reply",
                  "layer.11.conv_state", "layer.11.draft_conv_state", "layer.11.recurrent_state", "layer.11.base_state",
                  "layer.11.log_k", "layer.11.log_u", "layer.11.log_g", "layer.11.reply"));
  const auto shape = [&file](const char* name) { return file.entries().at(name).shape; };
  EXPECT_THAT(shape("layer.2.conv_state"), ElementsAre(2 * 2 * 6 + 4 * 5, 3));
  EXPECT_THAT(shape("layer.11.draft_conv_state"), ElementsAre(44, 3));
  EXPECT_THAT(shape("layer.2.base_state"), ElementsAre(4, 6, 5));
  EXPECT_THAT(shape("layer.11.log_k"), ElementsAre(18, 2, 6));
  EXPECT_THAT(shape("layer.11.log_u"), ElementsAre(18, 4, 5));
  EXPECT_THAT(shape("layer.11.log_g"), ElementsAre(18, 4));
  EXPECT_THAT(shape("layer.2.reply"), ElementsAre(2 * kModelDims.hidden_size * 4));

  const auto& metadata = file.metadata();
  EXPECT_EQ(metadata.at("format"), "gdn.state");
  EXPECT_EQ(metadata.at("format_version"), "2");
  EXPECT_EQ(metadata.at("layer_count"), "12");
  EXPECT_EQ(metadata.at("log_capacity"), "16");
  EXPECT_EQ(metadata.at("epoch"), "3");
  EXPECT_EQ(metadata.at("model"), "qwen");
  EXPECT_EQ(metadata.at("family"), "qwen3_next");
  EXPECT_EQ(metadata.at("snapshot_id").size(), 32u);
  EXPECT_EQ(metadata.count("base_snapshot_id"), 0u);
  EXPECT_EQ(
      metadata.at("layer.2"),
      R"({"base":"here","draft_length":0,"input_kind":"hidden_states","log_length":4,"reply":{"compute_time_us":1234,)"
      R"("payload":"0123456789abcdef000000000000002a","request_id":"step-41","token_count":41},"token_count":41})");
  const nlohmann::json checksums = nlohmann::json::parse(metadata.at("checksums"));
  EXPECT_EQ(checksums.size(), names.size());
  EXPECT_EQ(checksums.at("layer.2.log_g"), HashBytes(*file.Bytes("layer.2.log_g")).ToHex());
  absl::Time created;
  ASSERT_TRUE(absl::ParseTime(absl::RFC3339_full, metadata.at("created"), &created, nullptr));
  EXPECT_LE(created, absl::Now());
}

TEST_F(StateFiles, KeepTheSessionsAgeWhateverTheWallsClockSays) {
  constexpr absl::Duration kRounding = absl::Milliseconds(1);
  TestSession session = MakeModelSession();
  session.header.create_time = absl::Now() + absl::Hours(1000);  // it was set back since
  session.header.born = SteadyNow() - absl::Hours(3);
  GDN_ASSERT_OK_AND_ASSIGN(const auto read, Read(Encode(session, memory_.host, {.include_owner = true})));
  EXPECT_GE(read.header.born, session.header.born - kRounding);
  EXPECT_LE(read.header.born, SteadyNow() - absl::Hours(3) + kRounding);
  EXPECT_EQ(read.header.create_time, session.header.create_time);
}

TEST_F(StateFiles, NoTwoFilesShareAnId) {
  const SessionImagePtr image = MakeImage(MakeOperatorSession(), memory_.host);
  std::set<std::string> ids;
  for (int i = 0; i < 10; ++i) ids.insert(EncodeStateFile(image, {})->snapshot_id());
  EXPECT_EQ(ids.size(), 10u);
}

// In double: S = e^{G_n} S0 + sum_i e^{G_n - G_i} k_i u_i^T over the accepted entries.
std::vector<float> Folded(const LayerDims& dims, const TestLayer& layer) {
  std::vector<float> state(layer.base.size());
  for (int64_t hv = 0; hv < dims.value_heads; ++hv) {
    double total = 0.0;
    for (int64_t i = 0; i < layer.extent.log_length; ++i) total += layer.log_g[i * dims.value_heads + hv];
    for (int64_t k = 0; k < dims.key_dim; ++k) {
      for (int64_t v = 0; v < dims.value_dim; ++v) {
        const int64_t at = (hv * dims.key_dim + k) * dims.value_dim + v;
        double sum = std::exp(total) * layer.base[at];
        double reached = 0.0;
        for (int64_t i = 0; i < layer.extent.log_length; ++i) {
          reached += layer.log_g[i * dims.value_heads + hv];
          sum += std::exp(total - reached) * layer.log_k[(i * dims.key_heads + hv / dims.group()) * dims.key_dim + k] *
                 layer.log_u[(i * dims.value_heads + hv) * dims.value_dim + v];
        }
        state[at] = static_cast<float>(sum);
      }
    }
  }
  return state;
}

TEST_F(StateFiles, TheMaterialisedStateHasTheAcceptedLogFoldedIn) {
  constexpr double kRounding = 1e-6;  // both sum in double and round once
  const TestSession session = MakeModelSession();
  for (const bool transposed : {false, true}) {
    GDN_ASSERT_OK_AND_ASSIGN(const auto file,
                             EncodeStateFile(MakeImage(session, memory_.host, {.transposed_base = transposed}),
                                             {.include_recurrent_state = true}));
    const std::string bytes = FileBytes(file);
    const auto read = SafetensorsFile::Parse(bytes);
    for (const size_t i : {1, 2}) {
      const std::string name = "layer." + std::to_string(session.layers[i].layer) + ".recurrent_state";
      EXPECT_LE(RelativeNormError(*read->Floats(name), Folded(kModelDims, session.layers[i])), kRounding) << name;
    }
    ExpectSame(TakeApart(*Read(bytes)), session);
  }
}

TEST_F(StateFiles, TheMaterialisedStateMayBeHalfAsLarge) {
  const TestSession session = MakeModelSession();
  const std::string wide = Encode(session, memory_.host, {.include_recurrent_state = true});
  const std::string narrow =
      Encode(session, memory_.host, {.include_recurrent_state = true, .recurrent_state_dtype = DType::kBF16});
  const auto file = SafetensorsFile::Parse(narrow);
  EXPECT_EQ(file->entries().at("layer.2.recurrent_state").dtype, "BF16");
  EXPECT_EQ(file->entries().at("layer.0.recurrent_state").dtype, "F32") << "this one is the base";
  std::vector<float> expected = *SafetensorsFile::Parse(wide)->Floats("layer.2.recurrent_state");
  for (float& x : expected) x = BF16ToFloat(FloatToBF16(x));
  EXPECT_TRUE(BitEqual(*file->Floats("layer.2.recurrent_state"), expected));
  ExpectSame(TakeApart(*Read(narrow)), session);
}

TEST_F(StateFiles, WireOrderIsWrittenFromTheSlotItself) {
  const SessionImagePtr image = MakeImage(MakeModelSession(), memory_.host);
  const auto file = EncodeStateFile(image, {});
  const char* base = reinterpret_cast<const char*>(image->layers[0].slot.floats());
  EXPECT_TRUE(std::any_of(file->pieces().begin(), file->pieces().end(),
                          [base](std::string_view piece) { return piece.data() == base; }));
}

TEST_F(StateFiles, TheHeaderAloneTellsWhatTheFileHolds) {
  const std::string bytes = Encode(MakeModelSession(), memory_.host, {.include_owner = true});
  const uint64_t end = *SafetensorsHeaderEnd(bytes);
  GDN_ASSERT_OK_AND_ASSIGN(const auto file, ParseStateFileHeader(std::string_view(bytes).substr(0, end),
                                                                 static_cast<int64_t>(bytes.size())));
  EXPECT_EQ(file.header.id, "chat-1");
  ASSERT_EQ(file.layers.size(), 3u);
  EXPECT_EQ(file.layers[2].extent, (SlotExtent{int64_t{1} << 40, 15, 3}));
  EXPECT_TRUE(file.layers[2].view.base.empty());
  for (const int64_t size : {static_cast<int64_t>(bytes.size()) - 1, static_cast<int64_t>(bytes.size()) + 1}) {
    const absl::Status status = ParseStateFileHeader(std::string_view(bytes).substr(0, end), size).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << size;
  }
}

TEST_F(StateFiles, AFileIsVerifiedAsItArrives) {
  const TestSession session = MakeModelSession();
  const std::string bytes = Encode(session, memory_.host);
  const uint64_t header_end = *SafetensorsHeaderEnd(bytes);
  const std::string_view all = bytes;
  for (const int64_t file_bytes : {int64_t{0}, static_cast<int64_t>(bytes.size())}) {
    GDN_ASSERT_OK_AND_ASSIGN(auto file, ArrivingStateFile::Open(all.substr(0, header_end + 3), file_bytes));
    EXPECT_EQ(file.file_bytes(), static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(file.header().layers.size(), 3u);
    for (size_t size = header_end; size < bytes.size(); size += 37) ASSERT_TRUE(file.Check(all.substr(0, size)).ok());
    const auto cut = file.Finish(all.substr(0, bytes.size() - 1));
    EXPECT_EQ(cut.status().code(), absl::StatusCode::kDataLoss);
    GDN_ASSERT_OK_AND_ASSIGN(const auto whole, file.Finish(bytes));
    ExpectSame(TakeApart(*ReadImage(whole, StateLayout::Make(kModelDims, 8).value(), nullptr)), session);
  }
}

TEST_F(StateFiles, DamageIsToldWhenItsTensorIsWhole) {
  std::string bytes = Encode(MakeModelSession(), memory_.host);
  const auto raw = SafetensorsFile::Parse(bytes);
  ASSERT_TRUE(raw.ok());
  const std::string name = "layer.2.log_k";
  const auto& [dtype, shape, begin, end] = raw->entries().at(name);
  bytes[raw->header_bytes() + begin] ^= 0x10;
  const std::string_view all = bytes;
  GDN_ASSERT_OK_AND_ASSIGN(auto file, ArrivingStateFile::Open(bytes, 0));
  EXPECT_TRUE(file.Check(all.substr(0, raw->header_bytes() + end - 1)).ok());
  const absl::Status damaged = file.Check(all.substr(0, raw->header_bytes() + end));
  EXPECT_EQ(damaged.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(ErrorMetadata(damaged)["tensor"], name);
  EXPECT_EQ(file.Finish(bytes).status(), damaged);
}

TEST_F(StateFiles, EncodeRefusesPartsThatDoNotFit) {
  const auto make = [this] {
    return std::const_pointer_cast<SessionImage>(MakeImage(MakeModelSession(), memory_.host));
  };
  const std::function<void(SessionImage&)> changes[] = {
      [](SessionImage& s) { s.layers[0].slot = HostBlock(); },
      [](SessionImage& s) { s.layers[1].extent.log_length = -1; },
      [](SessionImage& s) { s.layers[1].extent.log_length = 16; },
      [](SessionImage& s) { s.layers[1].extent.token_count = 3; },
      [](SessionImage& s) { s.layers[1].extent.draft_length = 9; },
      [](SessionImage& s) { std::swap(s.layers[0], s.layers[1]); },
      [](SessionImage& s) { s.header.layers.pop_back(); },
      [](SessionImage& s) { s.header.layers.push_back(4096); },
      [](SessionImage& s) { s.layers[0].layer = -1; },
      [](SessionImage& s) { s.header.dims.key_dim = 0; },
      [](SessionImage& s) { s.header.dims.key_dim = 7; },
      [](SessionImage& s) { s.layers[1].has_base = false; },
      [](SessionImage& s) { s.header.accept_request_id = "\xff"; },
  };
  for (size_t i = 0; i < std::size(changes); ++i) {
    const auto image = make();
    changes[i](*image);
    EXPECT_EQ(EncodeStateFile(image, {}).status().code(), absl::StatusCode::kInvalidArgument) << i;
  }
  EXPECT_EQ(EncodeStateFile(make(), {.recurrent_state_dtype = DType::kF16}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(StateFiles, ReadingRefusesAnotherShape) {
  const std::string bytes = Encode(MakeModelSession(), memory_.host);
  const absl::Status status =
      ReadImage(*ParseStateFile(bytes), StateLayout::Make(kOperatorDims, 8).value(), /*owner=*/nullptr).status();
  EXPECT_EQ(ErrorReason(status), reason::kStateMismatch);
  EXPECT_EQ(ErrorMetadata(status)["field"], "dims");
}

}  // namespace
}  // namespace gdn::state_file_test
