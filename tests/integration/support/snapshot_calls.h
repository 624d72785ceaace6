// Calls that make and use snapshots.
//
// Thread safety: free functions. Ownership: plain values.
//
//   ASSERT_TRUE(Take(caller, "owner", "key").ok());
//   ASSERT_TRUE(Begin(caller, "child", "key").ok());
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/name_rules.h"
#include "server/session/session_lease.h"
#include "tests/integration/support/service_helpers.h"

namespace gdn {

inline v1::SnapshotSessionRequest SnapshotOf(const std::string& id, const std::string& key,
                                             std::optional<int64_t> expected = std::nullopt) {
  v1::SnapshotSessionRequest request;
  request.set_session("sessions/" + id);
  request.set_key(key);
  if (expected.has_value()) request.set_expected_token_count(*expected);
  return request;
}

inline Outcome<v1::SnapshotSessionResponse> Take(const Caller& caller, const std::string& id, const std::string& key,
                                                 std::optional<int64_t> expected = std::nullopt) {
  return Call(caller, &v1::GdnService::Stub::SnapshotSession, SnapshotOf(id, key, expected));
}

inline Outcome<v1::CreateSessionResponse> Begin(const Caller& caller, const std::string& id, const std::string& key) {
  v1::CreateSessionRequest request;
  request.set_session_id(id);
  request.set_snapshot(key);
  return Call(caller, &v1::GdnService::Stub::CreateSession, request);
}

inline Outcome<v1::ForkSessionResponse> ForkKey(const Caller& caller, const std::string& key,
                                                const std::vector<std::string>& children) {
  v1::ForkSessionRequest request;
  request.set_snapshot(key);
  for (const std::string& id : children) request.add_session_ids(id);
  return Call(caller, &v1::GdnService::Stub::ForkSession, request);
}

// Moves the snapshot from the device to the tier with the number `fastest`, or a slower one. No two callers may have a
// snapshot with this key.
inline void SendSnapshotDown(const Caller& caller, const std::string& key, size_t fastest = 0) {
  StateService& states = caller.server().server().states();
  for (const std::shared_ptr<Session>& session : states.sessions().All()) {
    if (session->id() != std::string(1, kSnapshotMark) + key) continue;
    SessionLease lease = session->TryLock();
    ASSERT_TRUE(lease.valid());
    EXPECT_TRUE(states.room().SendDown(lease, fastest).ok());
    return;
  }
  ADD_FAILURE() << "no snapshot " << key;
}

}  // namespace gdn
