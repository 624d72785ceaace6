#include "server/session/snapshots/snapshot_room.h"

#include <memory>
#include <string>
#include <utility>

#include <spdlog/spdlog.h>

#include "base/error.h"
#include "base/string_cat.h"
#include "base/task/sleep.h"
#include "base/task/status_macros.h"
#include "server/session/snapshots/snapshot_book.h"

namespace gdn {
namespace {

// How soon a call looks again while others end snapshots.
constexpr absl::Duration kSnapshotPoll = absl::Milliseconds(2);

}  // namespace

Task<absl::StatusOr<ByteCharge>> ChargeSnapshot(SessionManager& sessions, SessionEnvironment& environment,
                                                ByteAccountPtr account, int64_t bytes, Deadline deadline) {
  ByteLedger& ledger = environment.ledger();
  SnapshotBook& book = environment.snapshots();
  absl::Status refused;  // why a snapshot could not be ended
  for (;;) {
    // The ledger would allow a first charge whatever its size.
    const bool fits = bytes <= ledger.limit(BytePool::kSnapshots);
    absl::StatusOr<ByteCharge> charge = ledger.TryCharge(BytePool::kSnapshots, account, bytes);
    if (fits && charge.ok()) co_return charge;
    if (!fits) {
      co_return MakeError(
          absl::StatusCode::kResourceExhausted, reason::kBytesExhausted,
          StrCat("a snapshot of this session needs ", bytes, " bytes, and all snapshots together may take ",
                 ledger.limit(BytePool::kSnapshots), " (--snapshot-bytes); raise the flag"),
          {{"pool", "snapshot"},
           {"needed", StrCat(bytes)},
           {"held", StrCat(ledger.held(BytePool::kSnapshots, *account))},
           {"limit", StrCat(ledger.limit(BytePool::kSnapshots))}});
    }
    GDN_CO_RETURN_IF_ERROR(deadline.Check(SteadyNow()));
    const std::shared_ptr<Session> victim = book.TakeFirst(*account, bytes);
    if (victim == nullptr) {
      if (!book.evicting()) co_return refused.ok() ? charge.status() : refused;
      GDN_CO_RETURN_IF_ERROR(co_await SleepUntil(SteadyNow() + kSnapshotPoll, deadline));
      continue;
    }
    Task<absl::Status> end = sessions.Delete(victim->principal(), victim->id());
    const absl::Status ended = co_await std::move(end);
    if (ended.ok()) {
      book.NoteLost(victim->principal(), victim->id().substr(1), SnapshotLoss::Cause::kEvicted);
      spdlog::debug("snapshot evicted key={}", victim->id().substr(1));
      continue;
    }
    if (absl::IsUnavailable(ended)) refused = ended;
    book.PutBack(*victim);
  }
}

}  // namespace gdn
