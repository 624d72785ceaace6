// A user's test of its own program, against the fake server of the package.
#include <iostream>
#include <string>
#include <vector>

#include "gdn/base/error.h"
#include "gdn/client.h"
#include "gdn/tensor_codec.h"
#include "gdn/testing/fake_server.h"

namespace {

// A user's function: sends a prompt again while the server's queue is full.
absl::StatusOr<std::vector<float>> PatientPrefill(gdn::Client& client, const gdn::v1::PrefillRequest& prompt) {
  for (int tries = 0;; ++tries) {
    const auto reply = client.Prefill(prompt);
    if (reply.ok()) return gdn::TensorToFloats(reply->output());
    if (gdn::ErrorReason(reply.status()) != gdn::reason::kQueueFull || tries == 3) return reply.status();
  }
}

bool Expect(bool holds, const std::string& what) {
  if (!holds) std::cout << "not so: " << what << "\n";
  return holds;
}

}  // namespace

int main() {
  gdn::FakeServer server;
  const auto client = server.Connect();
  gdn::v1::CreateSessionRequest create;
  create.set_model("models/toy");
  const auto session = client->CreateSession(create);
  if (!Expect(session.ok(), "a session")) return 1;
  gdn::v1::PrefillRequest prompt;
  prompt.set_session(session->name());
  *prompt.mutable_hidden_states()->mutable_hidden_states() =
      *gdn::MakeTensor(std::vector<float>{1, 2, 3, 4, 1, 2, 3, 4}, std::vector<int64_t>{2, 4});

  const absl::Status full = gdn::MakeError(absl::StatusCode::kResourceExhausted, gdn::reason::kQueueFull, "later");
  server.RefuseNext("Prefill", full);
  server.RefuseNext("Prefill", full);
  const auto output = PatientPrefill(*client, prompt);
  const bool ok =
      Expect(output.ok() && *output == std::vector<float>{1, 2, 3, 4, 2, 4, 6, 8}, "the sums of the inputs") &&
      Expect(server.token_count(session->name(), 0) == 2, "two tokens");
  std::cout << (ok ? "users_test ok" : "users_test failed") << "\n";
  return ok ? 0 : 1;
}
