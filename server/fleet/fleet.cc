#include "server/fleet/fleet.h"

#include <spdlog/spdlog.h>

#include <optional>

#include "base/status_macros.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr absl::Duration kMailboxWait = absl::Seconds(1);  // the shortest timeout that Redis accepts

}  // namespace

Fleet::Fleet(const FleetParts& parts, const FleetOptions& options)
    : share_(parts.share()),
      departures_(parts),
      lease_({.share = share_,
              .environment = parts.environment,
              .on_lost =
                  [this](const std::vector<StateKey>& keys) {
                    departures_.Drop(keys);
                    departures_.DropUnowned();
                  }},
             options.lease),
      arrivals_(parts, options.longest_wait),
      leases_(parts, arrivals_) {
  share_.claims().SetLeaseCheck([&environment = parts.environment] { return environment.CheckOurs().ok(); });
  parts.environment.has_right = [&share = share_](const StateKey& key) { return !share.claims().token(key).empty(); };
}

Fleet::~Fleet() { Stop(); }

absl::Status Fleet::Begin() {
  GDN_RETURN_IF_ERROR(lease_.Begin());
  leases_.Begin();
  mailbox_ = std::thread([this] {
    NameThisThread("gdn-mailbox");
    ReadMailbox();
  });
  spdlog::info("sessions are shared with other servers: node={} id={} lease={}", name(), id(),
               absl::FormatDuration(lease_.lease()));
  return absl::OkStatus();
}

void Fleet::ReadMailbox() {
  while (!stop_.GivenWithin(absl::ZeroDuration())) {
    const absl::StatusOr<std::optional<StateKey>> asked = share_.NextAsked(kMailboxWait);
    if (!asked.ok()) {
      stop_.GivenWithin(kMailboxWait);  // Redis does not answer, which NodeLease logs; wait before the next try
    } else if (asked->has_value() && !departures_.HandOver(**asked)) {
      arrivals_.GiveBack(**asked);
    }
  }
}

bool Fleet::Leave(absl::Duration notice, absl::Duration timeout, const SessionDepartures::Progress& progress) {
  const SteadyTime end = SteadyNow() + notice;
  while (SteadyNow() < end && !stop_.GivenWithin(absl::Milliseconds(50))) {
  }
  arrivals_.Close();
  return departures_.HandOverAll(timeout, progress);
}

void Fleet::LeaveRest(absl::Duration timeout) {
  departures_.HandOverAll(timeout, [](int64_t, int64_t, int64_t) {});
}

void Fleet::Stop() {
  leases_.Stop();
  stop_.Give();
  if (mailbox_.joinable()) mailbox_.join();
}

void Fleet::End() {
  Stop();
  lease_.End();
}

}  // namespace gdn
