// State files that were made to do harm, by somebody who knows the format: each field is changed. A file is refused, or
// its values are such as calls could have made, whichever way it is read.
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "state_store/state_file/head_slices.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"
#include "tests/support/assert_ok.h"
#include "tests/support/state_file_changes.h"

namespace gdn::state_file_hostile_test {
namespace {

using ::testing::HasSubstr;

// Files of a kModelDims session: layer 2 has a log and a reply of two tokens, layer 11 a draft too.
class HostileStateFile : public ::testing::Test {
 protected:
  HostileStateFile() {
    TestSession after = MakeModelSession(6);
    for (TestLayer& layer : after.layers) layer.has_base = false;
    delta_ = Encode(after, memory_.host, {.base_snapshot_id = ParseStateFile(full_).value().snapshot_id});
  }

  // Gives the file the checksums of its tensors, as version 1 may have them, or of all but the first.
  static std::string WithChecksums(const std::string& file, bool all = true) {
    const absl::StatusOr<SafetensorsFile> parsed = SafetensorsFile::Parse(file);
    if (!parsed.ok()) return file;
    nlohmann::json checksums = nlohmann::json::object();
    std::vector<RawTensor> tensors;
    std::string data;
    for (const auto& [name, entry] : parsed->entries()) {
      tensors.push_back({name, entry.dtype, entry.shape, parsed->Bytes(name).value()});
      data += parsed->Bytes(name).value();
      if (all || tensors.size() > 1) checksums[name] = HashBytes(tensors.back().data).ToHex();
    }
    auto metadata = parsed->metadata();
    metadata["checksums"] = checksums.dump();
    return SafetensorsHeader(tensors, metadata).value() + data;
  }

  // `file`, with layer 2's entry changed, and its reply's bytes.
  static std::string WithReply(const std::string& file, const std::function<void(nlohmann::json&)>& change,
                               const std::string& bytes) {
    const SafetensorsFile parsed = SafetensorsFile::Parse(file).value();
    auto metadata = parsed.metadata();
    nlohmann::json layer = nlohmann::json::parse(metadata.at("layer.2"));
    change(layer);
    metadata["layer.2"] = layer.dump();
    metadata["format_version"] = "1";
    for (const char* own : {"checksums", "header_checksum"}) metadata.erase(own);
    std::vector<RawTensor> tensors;
    std::string data;
    for (const auto& [name, entry] : parsed.entries()) {
      RawTensor tensor{name, entry.dtype, entry.shape, parsed.Bytes(name).value()};
      if (name == "layer.2.reply") {
        tensor.shape = {static_cast<int64_t>(bytes.size())};
        tensor.data = bytes;
      }
      data += tensor.data;
      tensors.push_back(std::move(tensor));
    }
    return SafetensorsHeader(tensors, metadata).value() + data;
  }

  TestMemory memory_;
  const std::string full_ = Encode(MakeModelSession(), memory_.host);
  std::string delta_;
};

TEST_F(HostileStateFile, AReplyIsAsLongAsSomeStepsOutput) {
  constexpr size_t kTokenBytes = kModelDims.hidden_size * 2;  // of the narrowest output
  const auto read = [this](size_t bytes, const std::function<void(nlohmann::json&)>& change) {
    const std::string file = WithReply(full_, change, std::string(bytes, 'r'));
    const absl::Status status = ParseStateFile(file).status();
    EXPECT_EQ(ParseStateFileHeader(file, static_cast<int64_t>(file.size())).status(), status) << bytes;
    return status;
  };
  const auto as_it_is = [](nlohmann::json&) {};
  for (const size_t tokens : {0, 1, 2, 3, 41, 64}) {
    EXPECT_EQ(read(tokens * kTokenBytes, as_it_is), absl::OkStatus()) << tokens;
  }
  for (const size_t bytes : {size_t{1}, kTokenBytes - 1, kTokenBytes + 1, 129 * kTokenBytes, size_t{1} << 24}) {
    const absl::Status status = read(bytes, as_it_is);
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile, std::to_string(bytes));
    EXPECT_EQ(ErrorMetadata(status)["tensor"], "layer.2.reply");
  }
  // A call of another kind has outputs of other features.
  const auto projected = [](nlohmann::json& layer) { layer["input_kind"] = "projected"; };
  EXPECT_EQ(read(static_cast<size_t>(kModelDims.value_features()) * 4, projected), absl::OkStatus());
  EXPECT_FALSE(read(kTokenBytes, projected).ok());
}

TEST_F(HostileStateFile, ARepliesFieldsAreThoseOfACall) {
  const std::string output = RepliedBytes(kModelDims, 2);
  const auto refused = [&](const std::string& field, const nlohmann::json& value) {
    const auto change = [&](nlohmann::json& layer) { layer["reply"][field] = value; };
    return !ParseStateFile(WithReply(full_, change, output)).ok();
  };
  EXPECT_FALSE(refused("request_id", std::string(64, 'x')));
  EXPECT_TRUE(refused("request_id", std::string(65, 'x')));
  EXPECT_TRUE(refused("request_id", ""));
  EXPECT_TRUE(refused("request_id", "a b"));
  EXPECT_FALSE(refused("token_count", 41));
  EXPECT_TRUE(refused("token_count", 42)) << "more than the layer has seen";
  EXPECT_TRUE(refused("compute_time_us", (int64_t{1} << 53) + 1));
  EXPECT_TRUE(refused("output", "gone"));
}

TEST_F(HostileStateFile, ALogDecayAboveZeroIsRefusedAndNaNIsNot) {
  for (const auto& [g, legal] : {std::pair{0.5f, false},
                                 {std::numeric_limits<float>::denorm_min(), false},
                                 {std::numeric_limits<float>::infinity(), false},
                                 {0.0f, true},
                                 {-std::numeric_limits<float>::infinity(), true},
                                 {std::numeric_limits<float>::quiet_NaN(), true}}) {
    TestSession session = MakeModelSession();
    session.layers[1].log_g.back() = g;
    const absl::Status status = ParseStateFile(Encode(session, memory_.host)).status();
    if (legal) {
      EXPECT_EQ(status, absl::OkStatus()) << g;
      continue;
    }
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile, std::to_string(g));
    EXPECT_EQ(ErrorMetadata(status)["tensor"], "layer.2.log_g");
  }
}

TEST_F(HostileStateFile, AnErrorShowsTheBeginningOfALongText) {
  const StateFileChanges changes(full_);
  for (size_t i = 0; i < changes.size(); ++i) {
    const absl::Status status = ParseStateFile(changes.File(i)).status();
    EXPECT_LT(status.message().size(), 1500u) << changes.Name(i);
    for (const auto& [key, value] : ErrorMetadata(status)) EXPECT_LT(value.size(), 300u) << changes.Name(i);
  }
}

// Whatever reads it: a file of whole states comes out, or a reason why not.
TEST_F(HostileStateFile, AChangedFileMakesAWholeFileOrNone) {
  const std::string slice = SliceStateFile(full_, {.first = 0, .count = 2, .total = 4}).value();
  const std::string other = SliceStateFile(full_, {.first = 2, .count = 2, .total = 4}).value();
  int merged = 0, sliced = 0, joined = 0;
  const auto check = [](const absl::StatusOr<std::string>& made, const std::string& what, int& count) {
    if (made.ok()) {
      ++count;
      EXPECT_EQ(ParseStateFile(*made).status(), absl::OkStatus()) << what;
    } else {
      EXPECT_NE(ErrorReason(made.status()), "") << what << ": " << made.status();
    }
  };
  const StateFileChanges of_full(full_), of_delta(delta_), of_slice(slice);
  const std::string full = WithChecksums(of_full.Unchanged()), delta = WithChecksums(of_delta.Unchanged());
  ASSERT_EQ(MergeDelta(full, delta).status(), absl::OkStatus());
  for (size_t i = 0; i < of_full.size(); ++i) {
    const std::string changed = of_full.File(i);
    check(MergeDelta(WithChecksums(changed), delta), "full: " + of_full.Name(i), merged);
    check(SliceStateFile(changed, {.first = 2, .count = 2, .total = 4}), "slice: " + of_full.Name(i), sliced);
  }
  for (size_t i = 0; i < of_delta.size(); ++i) {
    check(MergeDelta(full, WithChecksums(of_delta.File(i))), "delta: " + of_delta.Name(i), merged);
  }
  for (size_t i = 0; i < of_slice.size(); ++i) {
    const std::string changed = of_slice.File(i);
    check(JoinStateFiles({changed, other}), "join: " + of_slice.Name(i), joined);
  }
  EXPECT_GT(merged, 50) << "labels and values that may be so";
  EXPECT_GT(sliced, 50);
  EXPECT_GT(joined, 20);
}

TEST_F(HostileStateFile, AFileWithoutSomeChecksumsIsNotMerged) {
  const std::string full = StateFileChanges(full_).Unchanged(), delta = StateFileChanges(delta_).Unchanged();
  for (const bool of_full : {true, false}) {
    const absl::Status status =
        MergeDelta(WithChecksums(full, /*all=*/!of_full), WithChecksums(delta, /*all=*/of_full)).status();
    ExpectError(status, absl::StatusCode::kDataLoss, reason::kInvalidStateFile);
    EXPECT_THAT(std::string(status.message()), HasSubstr("has no checksum"));
  }
}

}  // namespace
}  // namespace gdn::state_file_hostile_test
