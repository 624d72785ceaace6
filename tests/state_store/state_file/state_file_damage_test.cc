// Files that were cut, extended or changed: none of them becomes a state, and the error names the tensor.
#include <set>

#include "base/error.h"
#include "base/files/safetensors.h"
#include "gtest/gtest.h"
#include "state_store/state_file/parse.h"
#include "tests/state_store/test_image.h"

namespace gdn::state_file_damage_test {
namespace {

class DamagedStateFile : public ::testing::Test {
 protected:
  DamagedStateFile() {
    Random random(5);
    TestSession session;
    session.header.dims = kLargeDims;
    session.header.layers = {0, 1, 2};
    session.header.id = "s";
    session.layers = {MakeLayer(kLargeDims, 0, {.token_count = 9}, random),
                      MakeLayer(kLargeDims, 1, {.token_count = 50, .log_length = 14, .draft_length = 4}, random)};
    session.layers[1].reply = MakeReply("id", RepliedBytes(kLargeDims, 11));
    bytes_ = Encode(session, memory_.host, {.include_recurrent_state = true, .include_owner = true});
    file_ = SafetensorsFile::Parse(bytes_).value();
    header_end_ = *SafetensorsHeaderEnd(bytes_);
  }

  // The tensor that holds byte `at`, or "header".
  std::string TensorAt(size_t at) const {
    for (const auto& [name, entry] : file_->entries()) {
      if (at >= header_end_ + entry.begin && at < header_end_ + entry.end) return name;
    }
    return "header";
  }

  void ExpectDataLoss(const absl::Status& status, const std::string& what) {
    ASSERT_EQ(status.code(), absl::StatusCode::kDataLoss) << what << ": " << status;
    ASSERT_EQ(ErrorReason(status), reason::kInvalidStateFile) << what;
    ASSERT_TRUE(file_->Contains(ErrorMetadata(status)["tensor"]) || ErrorMetadata(status)["tensor"] == "header")
        << what << ": " << ErrorMetadata(status)["tensor"];
  }

  // Flips bits of one byte and expects the error to name the tensor that holds it. Returns the changed file.
  std::string ExpectFlipIsFound(size_t at, int mask) {
    const std::string what = "byte " + std::to_string(at);
    std::string flipped = bytes_;
    flipped[at] = static_cast<char>(flipped[at] ^ mask);
    const absl::Status status = ParseStateFile(flipped).status();
    ExpectDataLoss(status, what);
    EXPECT_EQ(ErrorMetadata(status)["tensor"], TensorAt(at)) << what << ": " << status;
    return flipped;
  }

  // Positions around every field of the file: the length, the header's ends, each tensor's ends.
  std::set<size_t> Boundaries() const {
    std::set<size_t> marks = {0, 8, header_end_, bytes_.size()};
    for (const auto& [name, entry] : file_->entries()) {
      marks.insert(header_end_ + entry.begin);
      marks.insert(header_end_ + entry.end);
    }
    std::set<size_t> positions;
    for (const size_t mark : marks) {
      for (size_t at = mark > 3 ? mark - 3 : 0; at <= mark + 3 && at < bytes_.size(); ++at) positions.insert(at);
    }
    for (size_t at = 0; at < 72; ++at) positions.insert(at);
    for (size_t at = header_end_ - 64; at < header_end_ + 64; ++at) positions.insert(at);
    for (size_t at = 0; at < bytes_.size(); at += 4096) positions.insert(at);
    return positions;
  }

  TestMemory memory_;
  std::string bytes_;
  std::optional<SafetensorsFile> file_;
  size_t header_end_ = 0;
};

TEST_F(DamagedStateFile, EveryTruncationIsDataLoss) {
  ASSERT_TRUE(ParseStateFile(bytes_).ok());
  for (const size_t size : Boundaries()) {
    const absl::Status status = ParseStateFile(std::string_view(bytes_).substr(0, size)).status();
    ExpectDataLoss(status, "cut at " + std::to_string(size));
    if (HasFatalFailure()) return;
  }
}

TEST_F(DamagedStateFile, EveryExtensionIsDataLoss) {
  for (const size_t more : {1, 4, 4096}) {
    ExpectDataLoss(ParseStateFile(bytes_ + std::string(more, '\0')).status(), "extended by " + std::to_string(more));
    ExpectDataLoss(ParseStateFile(bytes_ + bytes_.substr(0, more)).status(), "repeated by " + std::to_string(more));
  }
}

TEST_F(DamagedStateFile, AThousandFlippedBytesAreDataLossThatNamesTheTensor) {
  Random random(1000);
  for (int i = 0; i < 1000 && !HasFailure(); ++i) {
    const auto at = static_cast<size_t>(random.Next() % bytes_.size());
    ExpectFlipIsFound(at, random.NextInt(1, 255));
  }
}

TEST_F(DamagedStateFile, EveryFlippedHeaderByteIsDataLoss) {
  Random random(1001);
  for (size_t at = 0; at < header_end_ && !HasFailure(); ++at) {
    ASSERT_EQ(TensorAt(at), "header");
    const std::string flipped = ExpectFlipIsFound(at, at % 2 == 0 ? 1 << random.NextInt(0, 7) : random.NextInt(1, 255));
    const absl::Status listed =
        ParseStateFileHeader(std::string_view(flipped).substr(0, header_end_), static_cast<int64_t>(bytes_.size()))
            .status();
    ASSERT_EQ(listed.code(), absl::StatusCode::kDataLoss) << "byte " << at;
  }
}

TEST_F(DamagedStateFile, FlipsAtEveryBoundaryAreDataLoss) {
  for (const size_t at : Boundaries()) ExpectFlipIsFound(at, 0x80);
}

TEST_F(DamagedStateFile, ZeroedAndSwappedBlocksAreDataLoss) {
  for (size_t at = 0; at + 512 <= bytes_.size(); at += 512) {
    std::string torn = bytes_;
    torn.replace(at, 512, 512, '\0');
    if (torn == bytes_) continue;
    ExpectDataLoss(ParseStateFile(torn).status(), "zeroed from " + std::to_string(at));
    if (HasFatalFailure()) return;
  }
  std::string swapped = bytes_;
  const size_t first = header_end_ + 512;
  std::swap_ranges(swapped.begin() + first, swapped.begin() + first + 512, swapped.begin() + first + 1024);
  ExpectDataLoss(ParseStateFile(swapped).status(), "swapped");
}

}  // namespace
}  // namespace gdn::state_file_damage_test
