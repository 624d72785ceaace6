#include "client/cpp/kept_lease.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"

namespace gdn {
namespace {

constexpr int kRenewalsPerGrace = 3;
constexpr int kTriesPerGrace = 10;  // after a failure

}  // namespace

absl::StatusOr<std::unique_ptr<KeptLease>> KeptLease::Open(Client& client, const v1::OpenLeaseRequest& request) {
  GDN_ASSIGN_OR_RETURN(const v1::Lease lease, client.OpenLease(request));
  return std::unique_ptr<KeptLease>(new KeptLease(client, lease));
}

KeptLease::KeptLease(Client& client, const v1::Lease& lease)
    : client_(client),
      name_(lease.name()),
      grace_(absl::Seconds(lease.grace().seconds()) + absl::Nanoseconds(lease.grace().nanos())),
      thread_([this] { RenewUntilStopped(); }) {}

KeptLease::~KeptLease() { Stop(); }

absl::Status KeptLease::status() const {
  const std::lock_guard lock(mu_);
  return renewed_;
}

absl::StatusOr<int64_t> KeptLease::End() {
  Stop();
  return client_.EndLease(name_);
}

void KeptLease::Stop() {
  {
    const std::lock_guard lock(mu_);
    stop_ = true;
  }
  stop_changed_.notify_all();
  std::call_once(joined_, [this] { thread_.join(); });
}

bool KeptLease::StoppedWithin(absl::Duration time) {
  std::unique_lock lock(mu_);
  return stop_changed_.wait_for(lock, absl::ToChronoNanoseconds(time), [this] { return stop_; });
}

void KeptLease::RenewUntilStopped() {
  absl::Duration pause = grace_ / kRenewalsPerGrace;
  while (!StoppedWithin(pause)) {
    // A renewal that hangs is given up, so that the next one comes in time.
    CallOptions call;
    call.timeout = grace_ / kRenewalsPerGrace;
    absl::Status renewed = client_.RenewLease(name_, call).status();
    pause = grace_ / (renewed.ok() ? kRenewalsPerGrace : kTriesPerGrace);
    const bool ended = ErrorReason(renewed) == reason::kLeaseNotFound;
    const std::lock_guard lock(mu_);
    renewed_ = std::move(renewed);
    if (ended) return;
  }
}

}  // namespace gdn
