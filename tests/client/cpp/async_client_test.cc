#include "client/cpp/async_client.h"

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/synchronization/notification.h"
#include "base/error.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "gtest/gtest.h"
#include "tests/client/cpp/mock_stub.h"
#include "tests/support/assert_ok.h"

namespace gdn::async_client_test {
namespace {

// Answers no Decode before it is let go.
class HeldService : public v1::GdnService::Service {
 public:
  grpc::Status Decode(grpc::ServerContext* context, const v1::DecodeRequest* request,
                      v1::DecodeResponse* response) override {
    let_go.WaitForNotification();
    response->add_token_counts(request->layer());
    return grpc::Status::OK;
  }
  absl::Notification let_go;
};

// A reply, or an error, as its callback got it.
template <typename Response>
class Outcome {
 public:
  AsyncClient::Done<Response> Taker() {
    return [this](absl::StatusOr<Response> reply) {
      thread_ = std::this_thread::get_id();
      reply_ = std::move(reply);
      done_.Notify();
    };
  }
  const absl::StatusOr<Response>& Get() {
    done_.WaitForNotification();
    return reply_;
  }
  bool HasCome() const { return done_.HasBeenNotified(); }
  std::thread::id thread() const { return thread_; }

 private:
  absl::StatusOr<Response> reply_ = absl::UnknownError("no reply has come");
  std::thread::id thread_;
  absl::Notification done_;
};

v1::DecodeRequest DecodeOf(const std::string& session, int32_t layer) {
  v1::DecodeRequest request;
  request.add_sessions(session);
  request.set_layer(layer);
  v1::Tensor* const x = request.mutable_hidden_states()->mutable_hidden_states();
  x->set_dtype(v1::DTYPE_F32);
  for (const int64_t dim : {1, 1, kToyHidden}) x->add_shape(dim);
  x->set_data(std::string(kToyHidden * sizeof(float), '\0'));
  return request;
}

class AsyncClientTest : public ::testing::Test {
 protected:
  void TearDown() override {
    if (!held_.let_go.HasBeenNotified()) held_.let_go.Notify();
  }

  HeldService held_;
  LoopbackServer held_server_{&held_};
  std::unique_ptr<Client> held_client_ = Client::Connect(held_server_.target());
  FakeGdnService fake_;
  LoopbackServer fake_server_{&fake_};
  std::unique_ptr<Client> fake_client_ = Client::Connect(fake_server_.target());
};

TEST_F(AsyncClientTest, ReturnsBeforeTheServerAnswers) {
  AsyncClient async(*held_client_);
  Outcome<v1::DecodeResponse> first, second;
  async.Decode(DecodeOf("sessions/a", 7), first.Taker());
  async.Decode(DecodeOf("sessions/a", 8), second.Taker());
  EXPECT_FALSE(first.HasCome());
  EXPECT_FALSE(second.HasCome());
  held_.let_go.Notify();
  GDN_ASSERT_OK_AND_ASSIGN(const v1::DecodeResponse reply, first.Get());
  EXPECT_EQ(reply.token_counts(0), 7);
  GDN_ASSERT_OK_AND_ASSIGN(const v1::DecodeResponse other, second.Get());
  EXPECT_EQ(other.token_counts(0), 8);
  EXPECT_NE(first.thread(), std::this_thread::get_id());
}

TEST_F(AsyncClientTest, GivesTheServersReasonAndMetadata) {
  AsyncClient async(*fake_client_);
  Outcome<v1::DecodeResponse> outcome;
  async.Decode(DecodeOf("sessions/nobody", 0), outcome.Taker());
  ExpectError(outcome.Get().status(), absl::StatusCode::kNotFound, reason::kSessionNotFound);
}

TEST_F(AsyncClientTest, TakesEachStepInTheCallbackOfTheOneBefore) {
  constexpr int kSteps = 50;
  v1::CreateSessionRequest create;
  create.set_model(kToyModel);
  create.set_session_id("a");
  AsyncClient async(*fake_client_);
  Outcome<v1::DecodeResponse> last;
  int steps = 0;
  AsyncClient::Done<v1::DecodeResponse> finish = last.Taker();
  std::function<void(absl::StatusOr<v1::DecodeResponse>)> next = [&](absl::StatusOr<v1::DecodeResponse> reply) {
    if (!reply.ok() || ++steps == kSteps) {
      std::move(finish)(std::move(reply));
    } else {
      async.Decode(DecodeOf("sessions/a", 0), next);
    }
  };
  async.CreateSession(create, [&](absl::StatusOr<v1::CreateSessionResponse> made) {
    ASSERT_TRUE(made.ok()) << made.status();
    async.Decode(DecodeOf("sessions/a", 0), next);
  });
  GDN_ASSERT_OK_AND_ASSIGN(const v1::DecodeResponse reply, last.Get());
  EXPECT_EQ(reply.token_counts(0), kSteps);
  async.WaitForAll();
}

TEST_F(AsyncClientTest, SendsStepsOfEveryKind) {
  v1::CreateSessionRequest create;
  create.set_model(kToyModel);
  create.set_session_id("a");
  ASSERT_TRUE(fake_client_->CreateSession(create).ok());
  v1::StepRequest step;
  *step.mutable_hidden_states() = DecodeOf("sessions/a", 0).hidden_states();
  step.mutable_hidden_states()->mutable_hidden_states()->mutable_shape()->RemoveLast();  // [1, D]
  step.mutable_hidden_states()->mutable_hidden_states()->set_shape(1, kToyHidden);
  v1::StepRow* const row = step.add_rows();
  row->set_session("sessions/a");
  row->set_token_count(1);
  AsyncClient async(*fake_client_);
  int64_t count = 0;
  for (const v1::StepKind kind : {v1::STEP_KIND_PREFILL, v1::STEP_KIND_DECODE, v1::STEP_KIND_DRAFT}) {
    row->set_kind(kind);
    if (kind != v1::STEP_KIND_DRAFT) ++count;
    Outcome<v1::StepResponse> outcome;
    async.Step(step, outcome.Taker());
    GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse reply, outcome.Get());
    EXPECT_EQ(reply.token_counts(0), count);
    EXPECT_EQ(reply.output().shape(0), 1);
  }
  Outcome<v1::StepResponse> refused;
  async.Step(step, refused.Taker());
  ExpectError(refused.Get().status(), absl::StatusCode::kFailedPrecondition, reason::kDraftPending);
}

TEST_F(AsyncClientTest, CancelsACallAndNoOther) {
  AsyncClient async(*held_client_);
  Outcome<v1::DecodeResponse> cancelled, other;
  AsyncCall call = async.Decode(DecodeOf("sessions/a", 7), cancelled.Taker());
  async.Decode(DecodeOf("sessions/a", 8), other.Taker());
  call.Cancel();
  EXPECT_EQ(cancelled.Get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_FALSE(other.HasCome());
  held_.let_go.Notify();
  EXPECT_TRUE(other.Get().ok());
  async.WaitForAll();
  call.Cancel();  // of a call that has ended: nothing
}

TEST_F(AsyncClientTest, CancelsWhatIsUnderWayAndWaitsForCallbacksWhenItEnds) {
  Outcome<v1::DecodeResponse> outcome, later;
  {
    AsyncClient async(*held_client_);
    async.Decode(DecodeOf("sessions/a", 7), [&](absl::StatusOr<v1::DecodeResponse> reply) {
      // Begun while the client ends: it ends, too.
      async.Decode(DecodeOf("sessions/a", 8), later.Taker());
      outcome.Taker()(std::move(reply));
    });
  }
  ASSERT_TRUE(outcome.HasCome());
  ASSERT_TRUE(later.HasCome());
  EXPECT_EQ(outcome.Get().status().code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(later.Get().status().code(), absl::StatusCode::kCancelled);
}

TEST_F(AsyncClientTest, EndsACallWhoseTimeIsOver) {
  CallOptions call;
  call.timeout = absl::Milliseconds(1);
  AsyncClient async(*held_client_);
  Outcome<v1::DecodeResponse> outcome;
  async.Decode(DecodeOf("sessions/a", 7), outcome.Taker(), call);
  EXPECT_EQ(outcome.Get().status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(AsyncClientTest, TellsWhatIsWrongWithACallThatCannotBeSent) {
  CallOptions call;
  call.affinity = "two\nlines";
  AsyncClient async(*held_client_);
  Outcome<v1::DecodeResponse> outcome;
  async.Decode(DecodeOf("sessions/a", 7), outcome.Taker(), call);
  EXPECT_EQ(outcome.Get().status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(outcome.thread(), std::this_thread::get_id());
}

TEST(AsyncClientOfAStub, RefusesCalls) {
  Client client(std::make_unique<v1::MockGdnServiceStub>());
  AsyncClient async(client);
  Outcome<v1::DecodeResponse> outcome;
  async.Decode(v1::DecodeRequest(), outcome.Taker());
  EXPECT_EQ(outcome.Get().status().code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace gdn::async_client_test
