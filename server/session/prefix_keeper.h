// Keeps the states of sessions as prefixes: checks that they are those of the prompt, copies them, gives the copy to
// the index.
//
// The session is locked while its states are copied: steps wait for that, as they do for a checkpoint's copy.
// Thread safety: any thread; `done` comes from any thread, maybe before the method returns. Ownership: what it is made
// with must outlive it; on destruction what was begun must have ended (TaskQueue::Drain).
//
//   keeper.Keep(session, {.key = key, .tokens = tokens, .calls = CallsOf(segments), .kind = kind}, limit, done);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/task_queue.h"
#include "server/session/prefix_index.h"
#include "server/session/residency.h"
#include "server/session/state_copier.h"
#include "server/session/wait_limit.h"

namespace gdn {

// What the session has to have seen.
struct PrefixClaim {
  PrefixKey key = {};
  int64_t tokens = 0;
  PrefillCalls calls = {};
  InputKind kind = InputKind::kNone;
  std::optional<int64_t> epoch = {};  // the session's, as the caller knows it; nullopt: any
};

struct PrefixKeeperParts {
  PrefixIndex& index;
  Residency& residency;
  StateCopier& copier;
  DeviceRoom& room;
  TaskQueue& transfers;
};

class PrefixKeeper {
 public:
  explicit PrefixKeeper(const PrefixKeeperParts& parts) : parts_(parts) {}
  PrefixKeeper(const PrefixKeeper&) = delete;
  PrefixKeeper& operator=(const PrefixKeeper&) = delete;

  // True where the prefix is kept now, or another call is at it; false where there is no room. FAILED_PRECONDITION
  // (PREFIX_MISMATCH: layer, field, found, expected; INPUT_KIND_MISMATCH), ABORTED (EPOCH_MISMATCH), errors of
  // Residency::LockResident and StateCopier::CopyOut.
  void Keep(const std::shared_ptr<Session>& session, const PrefixClaim& claim, const WaitLimit& limit,
            std::function<void(absl::StatusOr<bool>)> done);

 private:
  const PrefixKeeperParts parts_;
};

}  // namespace gdn
