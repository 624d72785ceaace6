// AdmitAccept: the leases that settle a session's drafts.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "tests/server/session/session_fixture.h"
#include "tests/support/assert_ok.h"

namespace gdn::session_accept_test {
namespace {

class SessionAcceptTest : public SessionTest {
 protected:
  using AcceptRequest = Acceptance;

  absl::StatusOr<std::vector<StepLease>> Accept(const AcceptRequest& request) {
    return session_->AdmitAccept(PinOf(session_), request);
  }
  std::string Reason(const AcceptRequest& request) { return ErrorReason(Accept(request).status()); }
  void Draft(int32_t layer, int32_t length) {
    Step(PlainStep(layer), {.token_count = 3, .log_length = 3, .draft_length = length});
  }
};

TEST_F(SessionAcceptTest, GivesALeaseOnEveryLayerWithADraft) {
  session_ = world_.MakeSession(OperatorSessionSpec(3));
  Draft(0, 4);
  Draft(2, 2);
  GDN_ASSERT_OK_AND_ASSIGN(auto leases, Accept({.accepted_tokens = 2, .request_id = "a"}));
  ASSERT_EQ(leases.size(), 2u);
  EXPECT_EQ(leases[0].layer(), 0);
  EXPECT_EQ(leases[1].layer(), 2);
  EXPECT_EQ(leases[0].before().draft_length, 4);
  EXPECT_EQ(Reason({.accepted_tokens = 2}), reason::kSessionBusy);
  EXPECT_TRUE(Admit(PlainStep(1)).valid()) << "a layer without a draft goes on";
  for (StepLease& lease : leases) Finish(std::move(lease), {.token_count = 5, .log_length = 5});
  session_->NoteAccepted({.accepted_tokens = 2, .request_id = "a"});
  EXPECT_EQ(session_->Layers()[0].progress.token_count, 5);
  EXPECT_EQ(session_->Layers()[0].kind, InputKind::kDeltaRule);
  EXPECT_TRUE(Admit(PlainStep(0)).valid());

  const auto again = Accept({.accepted_tokens = 2, .request_id = "a"});
  ASSERT_TRUE(again.ok()) << "done before";
  EXPECT_TRUE(again->empty());
  EXPECT_EQ(Reason({.accepted_tokens = 1, .request_id = "a"}), reason::kRequestIdReused);
}

TEST_F(SessionAcceptTest, AcceptsNoMoreThanTheDraft) {
  EXPECT_EQ(Reason({.accepted_tokens = 1}), reason::kTooManyTokens) << "there is none";
  EXPECT_TRUE(Accept({.accepted_tokens = 0})->empty()) << "nothing of nothing is nothing to do";
  Draft(0, 4);
  Draft(1, 2);
  const absl::Status refused = Accept({.accepted_tokens = 3}).status();
  ExpectError(refused, absl::StatusCode::kInvalidArgument, reason::kTooManyTokens);
  EXPECT_EQ(ErrorMetadata(refused).at("layer"), "1");
  EXPECT_EQ(ErrorMetadata(refused).at("expected"), "2");
  EXPECT_EQ(Accept({.accepted_tokens = 2})->size(), 2u) << "a refusal takes no layer";
}

TEST_F(SessionAcceptTest, TakesAPathOfEveryLayersTreeAndNoOther) {
  const auto draft = [&](int32_t layer, std::vector<int32_t> parents) {
    const auto length = static_cast<int32_t>(parents.size());
    Step(PlainStep(layer),
         {.token_count = 3, .log_length = 3, .draft_length = length, .draft_parents = std::move(parents)});
  };
  draft(0, {-1, 0, 0, 2});
  draft(1, {-1, 0, 0, 1});
  const auto path = [](std::vector<int32_t> tokens, std::string id = "") {
    return AcceptRequest{
        .accepted_tokens = static_cast<int32_t>(tokens.size()), .path = std::move(tokens), .request_id = std::move(id)};
  };
  for (const std::vector<int32_t>& wrong : {std::vector<int32_t>{1}, {0, 2, 3}, {0, 1, 3}, {0, 4}}) {
    EXPECT_EQ(Reason(path(wrong)), reason::kValueOutOfRange) << ::testing::PrintToString(wrong);
  }
  EXPECT_EQ(Reason({.accepted_tokens = 3}), reason::kValueOutOfRange) << "the first three are no path";
  EXPECT_EQ(Reason({.accepted_tokens = 5}), reason::kTooManyTokens);
  const absl::Status refused = Accept(path({0, 2, 3})).status();
  EXPECT_EQ(ErrorMetadata(refused).at("layer"), "1");
  EXPECT_EQ(ErrorMetadata(refused).at("index"), "2");
  EXPECT_EQ(Accept({.accepted_tokens = 2})->size(), 2u) << "the first two are one";
  { EXPECT_EQ(Accept(path({0, 2}, "a"))->size(), 2u); }
  session_->NoteAccepted(path({0, 2}, "a"));
  EXPECT_TRUE(Accept(path({0, 2}, "a"))->empty());
  EXPECT_EQ(Reason(path({0, 1}, "a")), reason::kRequestIdReused);
  EXPECT_EQ(Reason({.accepted_tokens = 2, .request_id = "a"}), reason::kRequestIdReused);
}

TEST_F(SessionAcceptTest, ChecksTheEpochAfterTheIdAndRefusesABusySession) {
  Draft(0, 2);
  session_->TryLock().Restored(4);
  const absl::Status refused = Accept({.accepted_tokens = 3, .epoch = 3}).status();
  EXPECT_EQ(ErrorReason(refused), reason::kEpochMismatch);
  EXPECT_EQ(ErrorMetadata(refused).at("epoch"), "4");
  {
    const StepLease busy = Admit(PlainStep(1));
    EXPECT_EQ(Reason({.accepted_tokens = 1, .epoch = 4}), reason::kSessionBusy) << "no step may see half of it";
  }
  { GDN_ASSERT_OK_AND_ASSIGN(auto leases, Accept({.accepted_tokens = 1, .request_id = "a", .epoch = 4})); }
  EXPECT_EQ(session_->Layers()[0].progress.draft_length, 2) << "dropped leases leave the draft";
  session_->NoteAccepted({.accepted_tokens = 1, .request_id = "a"});
  EXPECT_TRUE(Accept({.accepted_tokens = 1, .request_id = "a", .epoch = 3})->empty());
}

}  // namespace
}  // namespace gdn::session_accept_test
