// Fixture for tests of several DurableSessions that are stepped together or one by one.
//
// Thread safety: for one thread. Ownership: the fixture owns its sessions.
//
//   class Mine : public DurableRows {};
//   TEST_F(Mine, StepsAll) { Start({}); ASSERT_TRUE(batch_->Step(Sessions(), request).ok()); }
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/cpp/durable_batch.h"
#include "tests/client/cpp/durable_session_fixture.h"

namespace gdn {

inline constexpr int kDurableRows = 3;
inline constexpr int kDurableLayers = 2;

class DurableRows : public Durable {
 protected:
  // Makes a new service, a batch, and sessions "row-0", "row-1", ..
  void Start(FakeGdnService::Options options) {
    sessions_.clear();
    options.layers = kDurableLayers;
    Durable::Start(std::move(options));
    batch_ = std::make_unique<DurableBatch>(*client_, Quick());
    row_outputs_.assign(kDurableRows, {});
    for (int row = 0; row < kDurableRows; ++row) {
      v1::CreateSessionRequest create;
      create.set_session_id(StrCat("row-", row));
      create.set_model("models/toy");
      auto session = DurableSession::Create(*client_, create, Quick());
      ASSERT_TRUE(session.ok()) << session.status();
      sessions_.push_back(*std::move(session));
    }
  }
  std::vector<DurableSession*> Sessions() const {
    std::vector<DurableSession*> sessions;
    for (const auto& session : sessions_) sessions.push_back(session.get());
    return sessions;
  }
  std::string AllStates() const {
    std::string states;
    for (const auto& session : sessions_) states += service_->States(session->name());
    return states;
  }

  std::unique_ptr<DurableBatch> batch_;
  std::vector<std::unique_ptr<DurableSession>> sessions_;
  std::vector<std::string> row_outputs_;  // of each session, end to end
};

}  // namespace gdn
