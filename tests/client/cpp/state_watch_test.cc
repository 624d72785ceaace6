#include "client/cpp/state_watch.h"

#include <memory>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/hash.h"
#include "gmock/gmock.h"
#include "grpcpp/test/mock_stream.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::state_watch_test {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::HasSubstr;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SetArgPointee;

v1::WatchStateResponse Piece(int64_t sequence, bool delta, const std::string& data, int64_t offset, int64_t total) {
  v1::WatchStateResponse piece;
  piece.set_sequence(sequence);
  piece.set_delta(delta);
  piece.set_data(data);
  piece.set_offset(offset);
  piece.set_total_bytes(total);
  piece.set_checksum(Hash64(data));
  return piece;
}

StateWatch Watch(const std::vector<v1::WatchStateResponse>& pieces, const grpc::Status& end = grpc::Status::OK) {
  auto reader = std::make_unique<NiceMock<grpc::testing::MockClientReader<v1::WatchStateResponse>>>();
  auto& reads = EXPECT_CALL(*reader, Read(_));
  reads.Times(::testing::AtMost(static_cast<int>(pieces.size()) + 1));
  for (const auto& piece : pieces) reads.WillOnce(DoAll(SetArgPointee<0>(piece), Return(true)));
  reads.WillRepeatedly(Return(false));
  EXPECT_CALL(*reader, Finish()).WillOnce(Return(end));
  return StateWatch(std::make_unique<grpc::ClientContext>(), std::move(reader));
}

TEST(StateWatch, GivesWholeSnapshotsInOrder) {
  StateWatch watch = Watch({Piece(0, false, "ab", 0, 5), Piece(0, false, "cde", 2, 5), Piece(1, true, "log", 0, 3)},
                           grpc::Status(grpc::StatusCode::NOT_FOUND, "deleted"));
  GDN_ASSERT_OK_AND_ASSIGN(const auto full, watch.Next());
  EXPECT_EQ(full.file, "abcde");
  EXPECT_EQ(full.sequence, 0);
  EXPECT_FALSE(full.delta);
  GDN_ASSERT_OK_AND_ASSIGN(const auto delta, watch.Next());
  EXPECT_EQ(delta.file, "log");
  EXPECT_EQ(delta.sequence, 1);
  EXPECT_TRUE(delta.delta);
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(watch.Next().status().code(), absl::StatusCode::kNotFound);
}

TEST(StateWatch, GivesNothingOfADamagedSnapshot) {
  v1::WatchStateResponse damaged = Piece(0, false, "cde", 2, 5);
  damaged.mutable_data()->back() ^= 4;
  StateWatch watch = Watch({Piece(0, false, "ab", 0, 5), damaged});
  const auto snapshot = watch.Next();
  ExpectError(snapshot.status(), absl::StatusCode::kDataLoss, reason::kInvalidStateFile);
  EXPECT_EQ(watch.Next().status(), snapshot.status());
}

TEST(StateWatch, RefusesASnapshotThatIsMixedOrCutAndADeltaToNothing) {
  const std::pair<std::vector<v1::WatchStateResponse>, std::string> cases[] = {
      {{Piece(0, false, "ab", 0, 5), Piece(1, false, "cde", 2, 5)}, "came inside snapshot 0"},
      {{Piece(0, false, "ab", 0, 5)}, "2 of 5 bytes"},
      {{Piece(0, true, "ab", 0, 2)}, "expected 0, in full"}};
  for (const auto& [pieces, message] : cases) EXPECT_THAT(Watch(pieces).Next().status().ToString(), HasSubstr(message));
}

TEST(StateWatch, RefusesAGapInTheSequence) {
  StateWatch gap = Watch({Piece(0, false, "ab", 0, 2), Piece(2, true, "cd", 0, 2)});
  ASSERT_TRUE(gap.Next().ok());
  EXPECT_THAT(gap.Next().status().ToString(), HasSubstr("snapshot 2 (a delta) came, expected 1"));
}

TEST(StateWatch, EndsTheCallWhenItGoes) {
  StateWatch watch = Watch({Piece(0, false, "ab", 0, 2)}, grpc::Status::CANCELLED);
  ASSERT_TRUE(watch.Next().ok());
  StateWatch moved = std::move(watch);  // Finish() once, by the one that has the call
}

}  // namespace
}  // namespace gdn::state_watch_test
