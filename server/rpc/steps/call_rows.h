// Common part of the calls that have a row for each session (Prefill, Decode, AcceptTokens): each row finds its
// session, pins it and ends with its own status. Without partial_ok the first bad row refuses the call.
//
// Thread safety: belongs to the call's flow. Ownership: names are the request's; sessions and pins are held.
//
//   GDN_CO_RETURN_IF_ERROR(rows.Find(caller, message.Rows()));
//   const std::vector<SessionAhead> sessions = rows.Sessions();
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "base/threads/steady_clock.h"
#include "server/batcher/engines.h"
#include "server/model/served_model.h"
#include "server/rpc/common_parts.h"
#include "server/rpc/steps/pin_sessions.h"
#include "server/session/session_environment.h"
#include "server/shared_memory/shared_regions.h"
#include "server/validation/step_input.h"
#include "state_store/host_block_pool.h"

namespace gdn {

// The parts that steps and AcceptTokens use.
struct StepParts {
  CommonParts common;
  const StepLimits& limits;
  const ModelCatalog& models;
  SessionEnvironment& environment;
  Checkpointer& checkpointer;
  Residency& residency;
  Engines& engines;
  SharedRegions& shared_regions;
  HostBlockPool& call_memory;     // memory for tensors of calls; page-locked if a device copies from it
  const SteadyClock& rate_clock;  // for quotas of tokens per second
};

struct CallRow {
  std::string_view name;  // "sessions/ID"; borrowed from the request
  std::optional<int64_t> expected_token_count;
  std::optional<int64_t> epoch;
  std::shared_ptr<Session> session;  // null if FindSession returned an error
  SessionPin pin;
  absl::Status status;
  int64_t ahead = 0;        // tokens that the call adds to those since the session's last checkpoint
  int64_t token_count = 0;  // the layer's, after the step
};

class CallRows {
 public:
  // `partial_ok`: a bad row does not end the call. `numbered`: messages of errors contain the row's number.
  CallRows(const StepParts& parts, bool partial_ok, bool numbered)
      : parts_(parts), partial_ok_(partial_ok), numbered_(numbered) {}
  CallRows(const CallRows&) = delete;
  CallRows& operator=(const CallRows&) = delete;

  // --- The stages, in their order. A returned error ends the call; a row's own error is kept in the row.
  // Looks up the rows' sessions. INVALID_ARGUMENT (DUPLICATE_SESSION) if two rows name one session, also with
  // partial_ok. Errors of FindSession are those of a row.
  absl::Status Find(const Caller& caller, std::vector<CallRow> rows);
  // Returns the sessions of the rows that had no error when NoteGood was called last, in row order.
  std::vector<SessionAhead> Sessions() const;
  // Takes the pins of Sessions(), or the errors that came in their place, parallel to it. Without partial_ok returns
  // the first error. In a fleet STATES_TAKEN_OVER becomes UNAVAILABLE (SESSION_MOVED).
  absl::Status TakePins(Residency::PinResults pins);

  const std::vector<CallRow>& all() const { return rows_; }
  const StepParts& parts() const { return parts_; }
  bool partial_ok() const { return partial_ok_; }
  // Returns the row's error as the client gets it: with the session's name in its metadata, and with the row's number
  // and the name before the message if `numbered`. OK stays OK.
  absl::Status RowError(size_t index) const;

 protected:
  ~CallRows() = default;
  // Stores `why` as the row's error. Returns it as the call's error without partial_ok, else OK.
  absl::Status Refuse(size_t index, absl::Status why);
  // Sets good_ to the rows that have no error so far.
  void NoteGood();
  // Fails the rows of sessions that another server may own by now, even if their step ran here. Does nothing if this
  // server shares no sessions.
  void CheckStillOurs();
  // Returns the call's error: that of the first bad row, with the rows that were applied all the same as metadata. OK
  // with partial_ok, or if no row is bad.
  absl::Status Outcome() const;

  const StepParts& parts_;
  std::vector<CallRow> rows_;
  std::vector<size_t> good_;  // rows_ index of each of Sessions()

 private:
  const bool partial_ok_;
  const bool numbered_;
};

}  // namespace gdn
