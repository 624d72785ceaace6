// The sessions with states on a device: which device each is on, what it is charged, and which sessions leave first.
//
// The first to leave is the least recently used session of the account that is furthest over its share of the devices.
// Accounts within their share count as equal. A session that could not leave goes behind all others for a while. To
// find the next sessions to leave, only a few are looked at, however many there are (base/eviction_order.h).
// Thread safety: safe from any thread. Ownership: sessions are not kept alive; the ledger must outlive it.
//
//   residents.Add(session, /*device=*/0, "", std::move(charge));
//   for (const auto& next : residents.FirstToLeave(leaving, 16)) { ... }
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/eviction_order.h"
#include "base/threads/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/session.h"

namespace gdn {

class DeviceResidents {
 public:
  // How much is on one device.
  struct Held {
    int64_t sessions = 0;
    int64_t bytes = 0;
  };
  // Says which sessions may leave.
  struct Leaving {
    std::vector<bool> devices = {};                       // by device: true if its sessions may leave
    const ByteAccount* account = nullptr;                 // only sessions of this account; nullptr: of any
    const ByteAccount* wanted_by = nullptr;               // gets the room; nullptr: nobody in particular
    SteadyTime unused_since;                              // only sessions whose last use was then or before
    const std::unordered_set<const Session*>& not_these;  // sessions that are left out, because they were tried
    SteadyTime now;
  };
  struct Candidate {
    std::shared_ptr<Session> session;
    int32_t device = 0;
  };

  DeviceResidents(ByteLedger& ledger, size_t devices) : ledger_(ledger), held_(devices) {}
  DeviceResidents(const DeviceResidents&) = delete;
  DeviceResidents& operator=(const DeviceResidents&) = delete;

  // Adds a session, whose states are on this device now. If it is here already, it is removed first. `affinity`:
  // DeviceRoom::AffinityOf. `charge`: for its bytes there, held until Remove.
  void Add(const std::shared_ptr<Session>& session, int32_t device, std::string affinity, ByteCharge charge);
  void Remove(const Session& session);
  // Returns at most `most` sessions that may leave, the first to leave first; they stay here and are not locked. An
  // account within its share of the device makes no room for another one that is over its own.
  std::vector<Candidate> FirstToLeave(const Leaving& leaving, size_t most);
  // Notes that the session could not leave. It then goes last for a while: 5 s, and twice as long each further time, up
  // to 5 minutes. Returns false if it goes last already, or is not here.
  bool NoteStuck(const Session& session, SteadyTime now);

  // Returns the device of the sessions with this affinity; nullopt if there are none.
  std::optional<int32_t> DeviceOf(const std::string& affinity) const;
  int64_t sessions() const;
  Held held(int32_t device) const;
  // Returns how many sessions FirstToLeave has looked at in total. For tests.
  int64_t looks() const;

 private:
  struct Resident {
    const Session* id = nullptr;  // its key in residents_
    std::weak_ptr<Session> session;
    ByteAccountPtr account;
    SteadyTime used;  // its last use, as known here
    int32_t device = 0;
    std::string affinity = {};
    ByteCharge charge;
    SteadyTime stuck_until = SteadyTime::InfinitePast();
    absl::Duration stuck_for = absl::ZeroDuration();

    SteadyTime LastUsed() const {
      const std::shared_ptr<Session> there = session.lock();
      return there == nullptr ? used : there->last_used();
    }
  };
  struct Group {
    int32_t device = 0;
    int64_t sessions = 0;
  };
  using Residents = std::unordered_map<const Session*, Resident>;

  // Removes the session. The caller destroys the result after it has released the mutex.
  Residents::node_type Extract(const Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ByteLedger& ledger_;
  mutable absl::Mutex mu_;
  Residents residents_ ABSL_GUARDED_BY(mu_);
  EvictionOrder<Resident, &Resident::account> order_ ABSL_GUARDED_BY(mu_);
  std::vector<Held> held_ ABSL_GUARDED_BY(mu_);  // by device
  std::unordered_map<std::string, Group> groups_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
