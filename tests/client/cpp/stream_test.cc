#include "client/cpp/stream.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "grpcpp/test/mock_stream.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::stream_test {
namespace {

using ::testing::_;
using ::testing::DoAll;
using ::testing::NiceMock;
using ::testing::Return;
using ::testing::SetArgPointee;

using MockPrefill =
    NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamPrefillRequest, v1::StreamPrefillResponse>>;
using MockDecode = NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamDecodeRequest, v1::StreamDecodeResponse>>;

v1::StreamPrefillResponse Reply(int64_t token_count) {
  v1::StreamPrefillResponse response;
  response.mutable_result()->set_token_count(token_count);
  return response;
}

v1::StreamPrefillResponse Failure(int code, const std::string& reason) {
  v1::StreamPrefillResponse response;
  response.mutable_status()->set_code(code);
  google::rpc::ErrorInfo info;
  info.set_reason(reason);
  info.set_domain("gdn.v1");
  response.mutable_status()->add_details()->PackFrom(info);
  return response;
}

class StreamTest : public ::testing::Test {
 protected:
  StreamTest() {
    auto mock = std::make_unique<MockPrefill>();
    mock_ = mock.get();
    stream_ = std::make_unique<PrefillStream>(std::make_unique<grpc::ClientContext>(), std::move(mock));
  }

  void ExpectReplies(const std::vector<v1::StreamPrefillResponse>& replies) {
    auto& reads = EXPECT_CALL(*mock_, Read(_));
    for (const auto& reply : replies) reads.WillOnce(DoAll(SetArgPointee<0>(reply), Return(true)));
    reads.WillRepeatedly(Return(false));
  }

  MockPrefill* mock_;  // owned by stream_
  std::unique_ptr<PrefillStream> stream_;
};

TEST_F(StreamTest, WrapsStepsAndUnwrapsReplies) {
  EXPECT_CALL(*mock_, Write(_, _)).WillOnce([](const v1::StreamPrefillRequest& request, auto) {
    EXPECT_EQ(request.segment().session(), "sessions/a");
    return true;
  });
  ExpectReplies({Reply(7)});
  v1::PrefillRequest segment;
  segment.set_session("sessions/a");
  EXPECT_TRUE(stream_->Write(segment).ok());
  const auto reply = stream_->Read();
  ASSERT_TRUE(reply.has_value() && reply->ok());
  EXPECT_EQ((*reply)->token_count(), 7);
  EXPECT_FALSE(stream_->Read().has_value());
}

TEST_F(StreamTest, GoesOnAfterAStepThatFailed) {
  ExpectReplies({Reply(7), Failure(10, "SESSION_BUSY"), Reply(9)});
  EXPECT_TRUE(stream_->Read()->ok());
  const auto failed = stream_->Read();
  ASSERT_TRUE(failed.has_value());
  ExpectError(failed->status(), absl::StatusCode::kAborted, reason::kSessionBusy);
  EXPECT_EQ((*stream_->Read())->token_count(), 9);
}

TEST_F(StreamTest, EndsOnceWhateverIsLeftToRead) {
  ExpectReplies({Reply(1), Reply(2)});
  EXPECT_CALL(*mock_, WritesDone()).WillOnce(Return(true));
  EXPECT_CALL(*mock_, Finish()).WillOnce(Return(grpc::Status(grpc::StatusCode::INTERNAL, "broken")));
  EXPECT_EQ(stream_->Finish(), absl::InternalError("broken"));
  EXPECT_EQ(stream_->Finish(), absl::InternalError("broken"));
  EXPECT_FALSE(stream_->Read().has_value());
  EXPECT_EQ(stream_->Write(v1::PrefillRequest()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(StreamTest, ReadOneTellsWhyTheStreamEnded) {
  ExpectReplies({});
  EXPECT_CALL(*mock_, Finish()).WillOnce(Return(grpc::Status(grpc::StatusCode::UNAVAILABLE, "draining")));
  EXPECT_EQ(stream_->ReadOne().status(), absl::UnavailableError("draining"));
}

TEST_F(StreamTest, ReadOneReportsAReplyThatNeverCame) {
  ExpectReplies({});
  EXPECT_EQ(stream_->ReadOne().status().code(), absl::StatusCode::kInternal);
}

TEST_F(StreamTest, ReportsAWriteToAStreamThatIsOver) {
  EXPECT_CALL(*mock_, Write(_, _)).WillOnce(Return(false));
  EXPECT_EQ(stream_->Write(v1::PrefillRequest()).code(), absl::StatusCode::kUnavailable);
}

TEST_F(StreamTest, FinishesWhenItIsDroppedAndNotWhenItIsMovedFrom) {
  EXPECT_CALL(*mock_, Finish()).WillOnce(Return(grpc::Status::CANCELLED));
  auto moved = std::make_unique<PrefillStream>(std::move(*stream_));
  stream_.reset();
  moved.reset();
}

TEST(DecodeStream, WrapsAndUnwrapsDecodeSteps) {
  auto mock = std::make_unique<MockDecode>();
  v1::StreamDecodeResponse response;
  response.mutable_result()->add_token_counts(3);
  EXPECT_CALL(*mock, Write(_, _)).WillOnce([](const v1::StreamDecodeRequest& request, auto) {
    EXPECT_EQ(request.step().layer(), 4);
    return true;
  });
  EXPECT_CALL(*mock, Read(_)).WillOnce(DoAll(SetArgPointee<0>(response), Return(true))).WillRepeatedly(Return(false));
  DecodeStream stream(std::make_unique<grpc::ClientContext>(), std::move(mock));
  v1::DecodeRequest step;
  step.set_layer(4);
  ASSERT_TRUE(stream.Write(step).ok());
  EXPECT_EQ(stream.ReadOne()->token_counts(0), 3);
}

TEST(MixedStream, WrapsAndUnwrapsSteps) {
  auto mock = std::make_unique<
      NiceMock<grpc::testing::MockClientReaderWriter<v1::StreamStepRequest, v1::StreamStepResponse>>>();
  v1::StreamStepResponse response;
  response.mutable_result()->add_token_counts(3);
  v1::StreamStepResponse failure;
  failure.mutable_status()->set_code(9);
  EXPECT_CALL(*mock, Write(_, _)).WillOnce([](const v1::StreamStepRequest& request, auto) {
    EXPECT_EQ(request.step().rows(0).token_count(), 4);
    return true;
  });
  EXPECT_CALL(*mock, Read(_))
      .WillOnce(DoAll(SetArgPointee<0>(failure), Return(true)))
      .WillOnce(DoAll(SetArgPointee<0>(response), Return(true)))
      .WillRepeatedly(Return(false));
  MixedStream stream(std::make_unique<grpc::ClientContext>(), std::move(mock));
  v1::StepRequest step;
  step.add_rows()->set_token_count(4);
  ASSERT_TRUE(stream.Write(step).ok());
  EXPECT_EQ(stream.ReadOne().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(stream.ReadOne()->token_counts(0), 3);
}

}  // namespace
}  // namespace gdn::stream_test
