// Fixture for tests of Session: one session of two operator layers, steps that compute nothing, reasons of refusals.
//
// Thread safety: for one thread. Ownership: owns its world and session; leases must be destroyed first.
//
//   TEST_F(SessionTest, KeepsTheLastReply) {
//     Step(Request("r"), {.token_count = 1}, Reply("one"));
//     EXPECT_EQ(TryAdmit(Request("r"))->stored->output, "one");
//     EXPECT_EQ(Reason(Request("r", "other payload")), reason::kRequestIdReused);
//   }
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "tests/server/session/session_test_support.h"

namespace gdn {

class SessionTest : public ::testing::Test {
 protected:
  static StepRequest Request(std::string_view request_id = "", std::string_view payload = "p",
                             std::optional<int64_t> expected = std::nullopt) {
    return {.layer = 0,
            .kind = InputKind::kDeltaRule,
            .request_id = request_id,
            .payload = HashBytes(payload),
            .expected_token_count = expected};
  }
  static std::shared_ptr<StoredReply> Reply(const std::string& output) {
    auto reply = std::make_shared<StoredReply>();
    reply->output = output;
    return reply;
  }

  // A call that joins, and its wait.
  struct Joiner {
    Joiner() { ended.Begin(); }
    Arrivals ended;
    JoinedCall call{.ended = &ended, .reply = absl::UnavailableError("not ended yet")};
  };
  absl::StatusOr<Admission> TryAdmit(const StepRequest& request, Joiner* joiner = nullptr) {
    const SessionPin pin = PinOf(session_);
    EXPECT_TRUE(pin.valid());
    return session_->Admit(pin.Another(), request, joiner == nullptr ? nullptr : &joiner->call);
  }
  StepLease Admit(const StepRequest& request) {
    auto admission = TryAdmit(request);
    EXPECT_TRUE(admission.ok()) << admission.status();
    EXPECT_TRUE(admission->lease.valid());
    return std::move(admission->lease);
  }
  // Admits a step, computes nothing and commits it.
  void Step(const StepRequest& request, const LayerProgress& after, std::shared_ptr<StoredReply> reply = nullptr) {
    Finish(Admit(request), after, std::move(reply));
  }
  static void Finish(StepLease lease, const LayerProgress& after, std::shared_ptr<StoredReply> reply = nullptr) {
    const auto slots = lease.PrepareDecode();
    ASSERT_TRUE(slots.ok()) << slots.status();
    lease.Commit({.after = after, .base_written = slots->zero}, std::move(reply));
  }
  std::string Reason(const StepRequest& request) { return ErrorReason(TryAdmit(request).status()); }
  void MarkDeleted() { session_->TryLock().MarkDeleted(); }

  SessionWorld world_{int64_t{1} << 22, /*reply_bytes=*/100};
  std::shared_ptr<Session> session_ = world_.MakeSession(OperatorSessionSpec(2));
};

}  // namespace gdn
