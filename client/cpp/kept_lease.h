// A lease that this process keeps alive: its sessions end when the process does, even if it is killed.
//
// A thread renews the lease three times in each grace period, and more often after a failure. The destructor stops the
// renewals, so the lease and its sessions end a grace period later; End ends them at once.
// Thread safety: all methods from any thread; destroy it once no other call uses it. Ownership: the client must outlive
// it.
//
//   v1::OpenLeaseRequest request;                                    // set request.grace, or get 60 s
//   GDN_ASSIGN_OR_RETURN(const auto lease, KeptLease::Open(*client, request));
//   create.set_lease(lease->name());                                 // for each session
//   if (!lease->status().ok()) ...                                   // the renewals fail; NOT_FOUND: it has ended
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "gdn/v1/lease.pb.h"

namespace gdn {

class KeptLease {
 public:
  // Opens the lease and begins to renew it. Errors of Client::OpenLease.
  static absl::StatusOr<std::unique_ptr<KeptLease>> Open(Client& client, const v1::OpenLeaseRequest& request);
  ~KeptLease();
  KeptLease(const KeptLease&) = delete;
  KeptLease& operator=(const KeptLease&) = delete;

  const std::string& name() const { return name_; }  // "leases/ID"
  absl::Duration grace() const { return grace_; }
  // The result of the last renewal; OK before the first. NOT_FOUND (LEASE_NOT_FOUND): the lease and its sessions have
  // ended, and nothing is renewed any more. After other errors the renewals go on.
  absl::Status status() const;
  // Stops the renewals (waits for one in progress, at most a third of the grace period), and ends the lease and its
  // sessions now. Returns the number of sessions that were deleted. Errors of Client::EndLease; the lease then ends a
  // grace period after its last renewal.
  absl::StatusOr<int64_t> End();

 private:
  KeptLease(Client& client, const v1::Lease& lease);
  void RenewUntilStopped();
  // Waits at most `time`. True once the renewals are to stop.
  bool StoppedWithin(absl::Duration time);
  void Stop();

  Client& client_;
  const std::string name_;
  const absl::Duration grace_;
  mutable std::mutex mu_;
  std::condition_variable stop_changed_;
  bool stop_ = false;     // guarded by mu_
  absl::Status renewed_;  // result of the last renewal; guarded by mu_
  std::once_flag joined_;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace gdn
