// Targets that nothing can be connected to: each kind of call says so at once.
#include <string>

#include "absl/synchronization/notification.h"
#include "client/cpp/async_client.h"
#include "client/cpp/client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace gdn::refusing_channel_test {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("has port '99999', expected a number in 1 .. 65535"));
}

class WrongTarget : public ::testing::Test {
 protected:
  const std::unique_ptr<Client> client_ = Client::Connect("127.0.0.1:99999");
};

TEST_F(WrongTarget, IsToldByCalls) {
  ExpectRefused(client_->GetServerInfo().status());
  ExpectRefused(client_->Decode({}).status());
}

TEST_F(WrongTarget, IsToldByStreamsInEitherDirection) {
  v1::ExportStateRequest request;
  request.set_name("sessions/a");
  ExpectRefused(client_->ExportState(request).status());
  ExpectRefused(client_->ImportState(v1::ImportStateRequest::Target(), "file").status());
}

TEST_F(WrongTarget, IsToldByAsynchronousCalls) {
  absl::Notification done;
  absl::Status status;
  AsyncClient async(*client_);
  async.Decode({}, [&](absl::StatusOr<v1::DecodeResponse> reply) {
    status = reply.status();
    done.Notify();
  });
  done.WaitForNotification();
  ExpectRefused(status);
}

}  // namespace
}  // namespace gdn::refusing_channel_test
