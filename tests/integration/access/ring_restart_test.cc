// A client with a ring on a server that ends and comes back with the same stores: nothing is applied twice or lost, and
// the client has a ring again.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/cpp/client.h"
#include "client/cpp/retry.h"
#include "client/cpp/step_place.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::ring_restart_test {
namespace {

std::atomic<int64_t> getpid_calls = 0;

class RingRestart : public testing::TestWithParam<bool> {
 protected:
  void Start() {
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.states.disk.directory = folder_.path();
    options.shared_memory.directory = rings_.path();
    options.listen = {"127.0.0.1:" + std::to_string(port_)};  // 0 at first, then the same port again
    server_ = std::make_unique<TestServer>(std::move(options));
    port_ = server_->server().port();
  }
  // Ends the server, in order or as a kill does.
  void End(bool in_order) {
    if (in_order) {
      EXPECT_TRUE(server_->Drain());
    }
    server_ = nullptr;
  }
  // Sends the step until it is answered; a server that is not there yet costs a try.
  static v1::DecodeResponse Persistently(Client& client, const v1::DecodeRequest& request) {
    const absl::Time until = absl::Now() + absl::Seconds(20);
    absl::StatusOr<v1::DecodeResponse> reply = client.Decode(request);
    while (WorthAnotherTry(reply.status()) && absl::Now() < until) {
      absl::SleepFor(absl::Milliseconds(5));
      reply = client.Decode(request);
    }
    EXPECT_TRUE(reply.ok()) << reply.status();
    return reply.ok() ? *reply : v1::DecodeResponse();
  }
  v1::DecodeRequest Step(const std::string& id, int64_t token) const {
    return WithId(feed_.Decode({id}, TokenRange{token, 1}), "step-" + std::to_string(token));
  }
  static int64_t Tokens(Client& client, const std::string& id) {
    const auto found = client.GetSession("sessions/" + id);
    EXPECT_TRUE(found.ok()) << found.status();
    return found.ok() && found->layers_size() > 0 ? found->layers(0).token_count() : -1;
  }

  const TempFolder folder_, rings_;
  const TokenFeed feed_ = TokenFeed::Operator(2);
  int port_ = 0;
  std::unique_ptr<TestServer> server_;
};

INSTANTIATE_TEST_SUITE_P(Ends, RingRestart, testing::Bool(),
                         [](const auto& in_order) { return in_order.param ? "InOrder" : "ByAKill"; });

TEST_P(RingRestart, ARetryGetsTheStoredReplyAndALaterCallARing) {
  Start();
  const std::unique_ptr<Client> client = Client::Connect(server_->address());
  const std::unique_ptr<Client> steady = Client::Connect(server_->address());  // by messages
  ASSERT_TRUE(client->OpenRing({.entries = 4, .area_bytes = 1 << 16}).ok());
  for (const char* id : {"ring", "message"}) ASSERT_TRUE(feed_.Create(Caller(*server_), id).ok());
  v1::DecodeResponse last;
  for (int64_t token = 0; token < 3; ++token) {
    last = Persistently(*client, Step("ring", token));
    EXPECT_EQ(last.output().data(), Persistently(*steady, Step("message", token)).output().data());
  }
  EXPECT_TRUE(client->UsesRing());
  for (const char* id : {"ring", "message"}) ASSERT_TRUE(Caller(*server_).Checkpoint(id).ok());

  End(/*in_order=*/GetParam());
  EXPECT_TRUE(WaitUntil([&] { return !client->UsesRing(); }, "the ring to end with its server"));
  const absl::StatusOr<v1::DecodeResponse> nobody = client->Decode(Step("ring", 2));
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kUnavailable) << nobody.status();
  Start();

  // The reply of this step counts as lost: the client asks for it again.
  EXPECT_EQ(Persistently(*client, Step("ring", 2)).output().data(), last.output().data());
  EXPECT_EQ(Tokens(*client, "ring"), 3) << "the step was applied again";
  for (int64_t token = 3; token < 5; ++token) {
    EXPECT_EQ(Persistently(*client, Step("ring", token)).output().data(),
              Persistently(*steady, Step("message", token)).output().data());
  }
  const auto has_a_ring = [&] {
    Persistently(*client, Step("ring", 4));  // a retry
    return client->UsesRing();
  };
  EXPECT_TRUE(WaitUntil(has_a_ring, "the client to open another ring"));
  EXPECT_EQ(Persistently(*client, Step("ring", 5)).output().data(),
            Persistently(*steady, Step("message", 5)).output().data());
  EXPECT_TRUE(client->UsesRing());
  EXPECT_EQ(Tokens(*client, "ring"), 6);
}

// Moves the tensors' bytes to the place.
v1::DecodeRequest InPlace(StepPlace& place, v1::DecodeRequest step) {
  v1::DeltaRuleInput& in = *step.mutable_delta_rule();
  size_t number = 0;
  for (v1::Tensor* const tensor : {in.mutable_q(), in.mutable_k(), in.mutable_v(), in.mutable_g(), in.mutable_beta()}) {
    if (place.input(number).size() == tensor->data().size()) {
      std::ranges::copy(tensor->data(), place.input(number).begin());
    } else {
      ADD_FAILURE() << "input " << number << " has " << place.input(number).size() << " bytes";
    }
    tensor->clear_data();
    ++number;
  }
  return step;
}

TEST_P(RingRestart, APlaceGoesOnInTheRingOfTheNextServer) {
  Start();
  const std::unique_ptr<Client> client = Client::Connect(server_->address());
  const std::unique_ptr<Client> steady = Client::Connect(server_->address());  // by messages
  ASSERT_TRUE(client->OpenRing({.entries = 4, .area_bytes = 1 << 16}).ok());
  for (const char* id : {"ring", "message"}) ASSERT_TRUE(feed_.Create(Caller(*server_), id).ok());
  v1::DecodeRequest shape = Step("ring", 0);
  v1::DeltaRuleInput& in = *shape.mutable_delta_rule();
  for (v1::Tensor* const tensor : {in.mutable_q(), in.mutable_k(), in.mutable_v(), in.mutable_g(), in.mutable_beta()}) {
    tensor->clear_data();
  }
  const auto place = StepPlace::Make(*client, shape);
  ASSERT_TRUE(place.ok()) << place.status();
  std::string last;
  const auto step = [&](int64_t token) {
    const v1::DecodeRequest request = InPlace(**place, Step("ring", token));
    absl::StatusOr<v1::DecodeResponse> reply = (*place)->Call(request);
    for (const absl::Time until = absl::Now() + absl::Seconds(20);
         WorthAnotherTry(reply.status()) && absl::Now() < until; reply = (*place)->Call(request)) {
      absl::SleepFor(absl::Milliseconds(5));
    }
    ASSERT_TRUE(reply.ok()) << reply.status();
    last.assign((*place)->output().begin(), (*place)->output().end());
    EXPECT_EQ(last, Persistently(*steady, Step("message", token)).output().data()) << token;
  };
  for (int64_t token = 0; token < 3; ++token) step(token);
  EXPECT_TRUE((*place)->in_ring());
  for (const char* id : {"ring", "message"}) ASSERT_TRUE(Caller(*server_).Checkpoint(id).ok());

  End(/*in_order=*/GetParam());
  EXPECT_TRUE(WaitUntil([&] { return !client->UsesRing(); }, "the ring to end with its server"));
  const absl::StatusOr<v1::DecodeResponse> nobody = (*place)->Call(InPlace(**place, Step("ring", 2)));
  EXPECT_EQ(nobody.status().code(), absl::StatusCode::kUnavailable) << nobody.status();
  EXPECT_EQ((*place)->output().size(), 0u);
  Start();

  const std::string before = last;
  step(2);  // a retry
  EXPECT_EQ(last, before);
  EXPECT_EQ(Tokens(*client, "ring"), 3) << "the step was applied again";
  for (int64_t token = 3; token < 5; ++token) step(token);
  const auto is_in_ring = [&] {
    step(4);  // a retry
    return (*place)->in_ring();
  };
  EXPECT_TRUE(WaitUntil(is_in_ring, "the place to enter another ring"));
  EXPECT_EQ(Tokens(*client, "ring"), 5);
}

class RingAndFork : public RingRestart {};
INSTANTIATE_TEST_SUITE_P(Ends, RingAndFork, testing::Values(false));

TEST_P(RingAndFork, AForkOfTheClientHasNoRing) {
  Start();
  const std::unique_ptr<Client> client = Client::Connect(server_->address());
  ASSERT_TRUE(client->OpenRing({.entries = 4, .area_bytes = 1 << 16}).ok());
  ASSERT_TRUE(feed_.Create(Caller(*server_), "ring").ok());
  Persistently(*client, Step("ring", 0));
  const pid_t child = fork();
  if (child == 0) _exit(client->UsesRing() ? 1 : 0);  // gRPC is not used: its threads are the parent's
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  Persistently(*client, Step("ring", 1));
  EXPECT_TRUE(client->UsesRing());
  EXPECT_EQ(Tokens(*client, "ring"), 2);
}

TEST_P(RingAndFork, ACallDoesNotAskTheSystemForItsProcess) {
  Start();
  const std::unique_ptr<Client> client = Client::Connect(server_->address());
  ASSERT_TRUE(client->OpenRing({.entries = 4, .area_bytes = 1 << 16}).ok());
  ASSERT_TRUE(feed_.Create(Caller(*server_), "ring").ok());
  Persistently(*client, Step("ring", 0));
  const int64_t before = getpid_calls;
  for (int64_t token = 1; token < 6; ++token) Persistently(*client, Step("ring", token));
  EXPECT_TRUE(client->UsesRing());
  EXPECT_EQ(getpid_calls - before, 0);
}

}  // namespace
}  // namespace gdn::ring_restart_test

// The linker gives the program's own objects this function in place of getpid.
extern "C" {
pid_t __real_getpid();
pid_t __wrap_getpid() {
  ++gdn::ring_restart_test::getpid_calls;
  return __real_getpid();
}
}
