// Keeps states of sessions as prefixes: checks that a session's states are those of the prompt, copies them, and gives
// the copy to the index.
//
// The session is locked while its states are copied, so steps wait, as for a checkpoint's copy.
// Thread safety: any thread. Ownership: its arguments must outlive it, and it must outlive its tasks.
//
//   PrefixClaim claim{.key = key, .tokens = tokens, .calls = CallsOf(segments), .kind = kind};
//   GDN_CO_ASSIGN_OR_RETURN(const bool kept, co_await keeper.Keep(session, claim, deadline));
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/task/deadline.h"
#include "base/task/task.h"
#include "server/session/prefixes/prefix_index.h"
#include "server/session/room/residency.h"

namespace gdn {

// The prompt that the session must have seen to be kept as a prefix.
struct PrefixClaim {
  PrefixKey key = {};
  int64_t tokens = 0;
  PrefillCalls calls = {};
  InputKind kind = InputKind::kNone;
  std::optional<int64_t> epoch = {};  // the epoch that the caller knows; nullopt: any
};

class PrefixKeeper {
 public:
  PrefixKeeper(const StateParts& parts, PrefixIndex& index, Residency& residency)
      : parts_(parts), index_(index), residency_(residency) {}
  PrefixKeeper(const PrefixKeeper&) = delete;
  PrefixKeeper& operator=(const PrefixKeeper&) = delete;

  // True if the prefix is kept now, or another call is about to keep it; false if there is no room. FAILED_PRECONDITION
  // (PREFIX_MISMATCH: layer, field, found, expected; INPUT_KIND_MISMATCH), ABORTED (EPOCH_MISMATCH), errors of
  // Residency::LockResident and StateCopier::CopyOut.
  Task<absl::StatusOr<bool>> Keep(std::shared_ptr<Session> session, PrefixClaim claim, Deadline deadline);

 private:
  const StateParts parts_;
  PrefixIndex& index_;
  Residency& residency_;
};

}  // namespace gdn
