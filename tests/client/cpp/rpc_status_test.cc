#include "client/cpp/rpc_status.h"

#include <string>

#include "base/error.h"
#include "gmock/gmock.h"
#include "google/rpc/error_details.pb.h"
#include "gtest/gtest.h"
#include "tests/support/assert_ok.h"

namespace gdn::rpc_status_test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

google::rpc::Status DetailedStatus(int code, const std::string& message, const std::string& domain = "gdn.v1") {
  google::rpc::Status status;
  status.set_code(code);
  status.set_message(message);
  google::rpc::ErrorInfo info;
  info.set_reason("TOKEN_COUNT_MISMATCH");
  info.set_domain(domain);
  (*info.mutable_metadata())["session"] = "sessions/a";
  (*info.mutable_metadata())["token_count"] = "37";
  status.add_details()->PackFrom(info);
  google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_seconds(1);
  retry.mutable_retry_delay()->set_nanos(500'000'000);
  status.add_details()->PackFrom(retry);
  return status;
}

grpc::Status OnTheWire(const google::rpc::Status& status) {
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), status.message(), status.SerializeAsString());
}

TEST(StatusFromGrpc, RestoresReasonAndMetadata) {
  const absl::Status status = StatusFromGrpc(OnTheWire(DetailedStatus(10, "the layer has seen 37 tokens")));
  EXPECT_EQ(status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(status.message(), "the layer has seen 37 tokens");
  EXPECT_EQ(ErrorReason(status), reason::kTokenCountMismatch);
  EXPECT_THAT(ErrorMetadata(status), ElementsAre(Pair("session", "sessions/a"), Pair("token_count", "37")));
}

TEST(StatusFromGrpc, KeepsEveryCanonicalCode) {
  for (int code = 1; code <= 16; ++code) {
    const absl::Status status = StatusFromGrpc(grpc::Status(static_cast<grpc::StatusCode>(code), "message"));
    EXPECT_EQ(static_cast<int>(status.code()), code);
    EXPECT_EQ(status.message(), "message");
  }
  EXPECT_TRUE(StatusFromGrpc(grpc::Status::OK).ok());
}

TEST(StatusFromGrpc, LosesOnlyTheReasonWhereDetailsAreDamagedOrAbsent) {
  for (const std::string details : {"", "\xff\xff\xff not a message"}) {
    const absl::Status status = StatusFromGrpc(grpc::Status(grpc::StatusCode::NOT_FOUND, "no such session", details));
    EXPECT_EQ(status, absl::NotFoundError("no such session"));
    EXPECT_EQ(ErrorReason(status), "");
    EXPECT_THAT(ErrorMetadata(status), IsEmpty());
  }
}

TEST(StatusFromGrpc, TakesNoReasonFromAnotherDomain) {
  const absl::Status status = StatusFromGrpc(OnTheWire(DetailedStatus(14, "overloaded", "proxy.example.com")));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "");
}

TEST(StatusFromRpc, RestoresAStreamMessagesStatus) {
  const absl::Status status = StatusFromRpc(DetailedStatus(10, "behind"));
  ExpectError(status, absl::StatusCode::kAborted, reason::kTokenCountMismatch);
  EXPECT_TRUE(StatusFromRpc(google::rpc::Status()).ok());
}

TEST(StatusFromRpc, MakesUnknownOfACodeThatDoesNotExist) {
  for (const int code : {17, 400, -1}) {
    EXPECT_EQ(StatusFromRpc(DetailedStatus(code, "odd")).code(), absl::StatusCode::kUnknown) << code;
  }
}

TEST(RetryDelay, IsWhatTheServerAsksFor) {
  EXPECT_EQ(RetryDelay(StatusFromRpc(DetailedStatus(8, "full"))), absl::Milliseconds(1500));
  EXPECT_EQ(RetryDelay(absl::ResourceExhaustedError("full")), std::nullopt);
  EXPECT_EQ(RetryDelay(absl::OkStatus()), std::nullopt);
}

}  // namespace
}  // namespace gdn::rpc_status_test
