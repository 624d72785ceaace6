#include "server/fleet/node_lease.h"

#include <spdlog/spdlog.h>

#include <string>
#include <utility>

#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int kRenewalsPerLease = 5;
constexpr int kTriesPerLease = 50;  // tries per lease after a failure

}  // namespace

NodeLease::NodeLease(const NodeLeaseParts& parts, absl::Duration lease) : parts_(parts), lease_(lease) {
  parts_.environment.SetOursUntil(SteadyTime::FromNanos(0));  // no session may be relied on before Begin
}

absl::Status NodeLease::Begin() {
  GDN_RETURN_IF_ERROR(Renew());
  thread_.emplace("gdn-node-lease", lease_ / kRenewalsPerLease, [this] { return RenewAgain(); });
  return absl::OkStatus();
}

void NodeLease::End() {
  if (!thread_.has_value()) return;
  Stop();
  parts_.environment.SetOursUntil(SteadyTime::FromNanos(0));
  if (const absl::Status ended = parts_.share.EndLease(); !ended.ok()) {
    spdlog::warn("cannot end this server's lease at Redis; other servers wait until it expires: {}",
                 std::string(ended.message()));
  }
}

absl::Duration NodeLease::RenewAgain() {
  const absl::Status renewed = Renew();
  if (!renewed.ok() && !std::exchange(failing_, true)) {
    spdlog::error("the lease of this server is not renewed; its sessions are refused once it has run out: {}",
                  std::string(renewed.message()));
  }
  if (renewed.ok() && std::exchange(failing_, false)) spdlog::info("the lease of this server is renewed again");
  return lease_ / (failing_ ? kTriesPerLease : kRenewalsPerLease);
}

absl::Status NodeLease::Renew() {
  const SteadyTime asked = parts_.environment.clock().Now();
  GDN_RETURN_IF_ERROR(parts_.share.RenewLease(lease_).status());
  // Decide by this server's clock whether the lease had run out, not by the store's answer. A store that was set back
  // may have forgotten a valid lease. If the answer to an earlier renewal was lost, the store has a lease that this
  // server did not know of.
  if (confirmed_ < asked && parts_.environment.clock().Now() - confirmed_ >= lease_ &&
      !std::exchange(look_through_, true)) {
    ++lapses_;
    spdlog::warn("this server's lease had expired; checking which of its sessions other servers have taken over");
  }
  std::vector<StateKey> lost;
  const absl::Status looked = parts_.share.FindLost(look_through_, lost);
  if (!lost.empty()) spdlog::warn("sessions lost to other servers={}", lost.size());
  parts_.on_lost(lost);
  GDN_RETURN_IF_ERROR(looked);
  look_through_ = false;
  confirmed_ = asked;
  parts_.environment.SetOursUntil(asked + lease_ * (kRenewalsPerLease - 1) / kRenewalsPerLease);
  return absl::OkStatus();
}

}  // namespace gdn
