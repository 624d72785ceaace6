// The sessions whose states are on a device: where each is, what it is charged for, and which of them leave first.
//
// The first to leave is a session of the account that holds most for its share of the devices (those within their share
// are equals), and of that account's sessions the least recently used. A session that could not leave goes behind all
// others for a while.
// Finding the next few looks at a few sessions, however many there are: each account's sessions are kept in the order
// of their use as it was last looked at, and a session that was used since is put into its place when it comes up.
// Thread safety: safe from any thread. Ownership: sessions are not kept alive; the ledger must outlive it.
//
//   residents.Add(session, /*device=*/0, "", std::move(charge));
//   for (const auto& next : residents.FirstToLeave(leaving, 16)) { ... }
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/steady_clock.h"
#include "server/admission/byte_ledger.h"
#include "server/session/session.h"

namespace gdn {

class DeviceResidents {
 public:
  // The residents of one device.
  struct Held {
    int64_t sessions = 0;
    int64_t bytes = 0;
  };
  // Which sessions may leave.
  struct Leaving {
    std::vector<bool> devices = {};                       // by device: from this one
    const ByteAccount* account = nullptr;                 // only this account's; nullptr: anybody's
    SteadyTime unused_since;                              // only those that nobody has used since
    const std::unordered_set<const Session*>& not_these;  // was tried
    SteadyTime now;
  };
  struct Candidate {
    std::shared_ptr<Session> session;
    int32_t device = 0;
  };

  DeviceResidents(ByteLedger& ledger, size_t devices) : ledger_(ledger), held_(devices) {}
  DeviceResidents(const DeviceResidents&) = delete;
  DeviceResidents& operator=(const DeviceResidents&) = delete;

  // `affinity`: DeviceRoom::AffinityOf. One that is here already is here anew.
  void Add(const std::shared_ptr<Session>& session, int32_t device, std::string affinity, ByteCharge charge);
  void Remove(const Session& session);
  // At most `most`, the first to leave first.
  std::vector<Candidate> FirstToLeave(const Leaving& leaving, size_t most);
  // The session could not leave, and goes last for a while: 5 s, and twice as long each further time, up to 5 minutes.
  // False if it goes last already.
  bool NoteStuck(const Session& session, SteadyTime now);

  // The device of the sessions with this affinity, if there are any.
  std::optional<int32_t> DeviceOf(const std::string& affinity) const;
  int64_t sessions() const;
  Held held(int32_t device) const;
  // How many sessions FirstToLeave has looked at, in all.
  int64_t looks() const;

 private:
  using Use = std::pair<SteadyTime, const Session*>;  // when it was last used, as far as is known here
  struct Resident {
    std::weak_ptr<Session> session;
    ByteAccountPtr account;
    SteadyTime used;  // as in lines_
    int32_t device = 0;
    std::string affinity = {};
    ByteCharge charge;
    SteadyTime stuck_until = SteadyTime::InfinitePast();
    absl::Duration stuck_for = absl::ZeroDuration();
  };
  struct Group {
    int32_t device = 0;
    int64_t sessions = 0;
  };
  struct Cursor;
  using Residents = std::unordered_map<const Session*, Resident>;

  // Takes the session out; the result is destroyed without the mutex.
  Residents::node_type Extract(const Session* session) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Moves on to the next session that may leave, itself included. False: there is none.
  bool Find(Cursor& cursor, const Leaving& leaving, std::vector<Residents::node_type>& gone)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ByteLedger& ledger_;
  mutable absl::Mutex mu_;
  Residents residents_ ABSL_GUARDED_BY(mu_);
  std::map<const ByteAccount*, std::set<Use>> lines_ ABSL_GUARDED_BY(mu_);  // no line is empty
  std::vector<Held> held_ ABSL_GUARDED_BY(mu_);                             // by device
  std::unordered_map<std::string, Group> groups_ ABSL_GUARDED_BY(mu_);
  int64_t looks_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
