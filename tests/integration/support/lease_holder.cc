// A client process that is killed: opens a lease at the server argv[1], makes sessions under it (each with a
// checkpoint if the server has a durable tier, and one fork), writes a 1 to argv[2] as a port file, and waits to be
// killed. argv[3]: the grace in seconds. argv[4]: the number of sessions.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/client.h"
#include "client/cpp/kept_lease.h"
#include "tools/common/child_process.h"

namespace {

absl::Status MakeSessions(gdn::Client& client, const std::string& lease, int count) {
  for (int i = 0; i < count; ++i) {
    gdn::v1::CreateSessionRequest create;
    create.set_session_id("held-" + std::to_string(i));
    create.set_lease(lease);
    create.mutable_operator_()->set_key_heads(1);
    create.mutable_operator_()->set_value_heads(1);
    create.mutable_operator_()->set_key_dim(8);
    create.mutable_operator_()->set_value_dim(8);
    create.add_initial_states()->set_token_count(1);
    GDN_ASSIGN_OR_RETURN(const gdn::v1::Session session, client.CreateSession(create));
    gdn::v1::CheckpointSessionRequest checkpoint;
    checkpoint.set_name(session.name());
    const absl::Status made = client.CheckpointSession(checkpoint).status();
    if (!made.ok() && gdn::ErrorReason(made) != gdn::reason::kNoDurableTier) return made;
  }
  gdn::v1::ForkSessionRequest fork;
  fork.set_name("sessions/held-0");
  fork.add_session_ids("child");
  return client.ForkSession(fork).status();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto client = gdn::Client::Connect(argv[1]);
  gdn::v1::OpenLeaseRequest open;
  open.set_lease_id("engine");
  open.mutable_grace()->set_seconds(std::atoi(argv[3]));
  const auto lease = gdn::KeptLease::Open(*client, open);
  absl::Status ready = lease.status();
  if (ready.ok()) ready = MakeSessions(*client, (*lease)->name(), std::atoi(argv[4]));
  if (ready.ok()) ready = gdn::WritePortFile(argv[2], 1);
  if (!ready.ok()) {
    std::fprintf(stderr, "%s\n", ready.ToString().c_str());
    return 1;
  }
  for (;;) pause();
}
