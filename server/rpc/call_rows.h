// What the calls over rows of sessions have in common (Prefill, Decode, AcceptTokens): each row finds its session, has
// it pinned, and ends with a status of its own. Without partial_ok the first bad row refuses the call.
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
#include "server/rpc/caller.h"
#include "server/rpc/pin_sessions.h"
#include "server/rpc/service_context.h"

namespace gdn {

struct CallRow {
  std::string_view name;  // "sessions/ID", the request's
  std::optional<int64_t> expected_token_count;
  std::optional<int64_t> epoch;
  std::shared_ptr<Session> session;  // null if it was not found
  SessionPin pin;
  absl::Status status;
  int64_t ahead = 0;        // tokens by which the call moves the session away from its last checkpoint
  int64_t token_count = 0;  // after the step
};

class CallRows {
 public:
  // `numbered`: errors tell the row's number.
  CallRows(const ServiceContext& context, bool partial_ok, bool numbered)
      : context_(context), partial_ok_(partial_ok), numbered_(numbered) {}
  CallRows(const CallRows&) = delete;
  CallRows& operator=(const CallRows&) = delete;

  // --- The stages, in their order. Each error is the call's; rows that have errors of their own keep them.
  // Looks up the rows' sessions. INVALID_ARGUMENT (DUPLICATE_SESSION), errors of FindSession.
  absl::Status Find(const Caller& caller, std::vector<CallRow> rows);
  // The sessions of good rows, in their order.
  std::vector<SessionAhead> Sessions() const;
  // The pins of Sessions().
  absl::Status TakePins(Residency::PinResults pins);

  const std::vector<CallRow>& all() const { return rows_; }
  const ServiceContext& context() const { return context_; }
  bool partial_ok() const { return partial_ok_; }
  // The row's error as the call tells it.
  absl::Status RowError(size_t index) const;

 protected:
  ~CallRows() = default;
  // Keeps an error as the row's own. If it refuses the call, returns it as the call's; else OK.
  absl::Status Refuse(size_t index, absl::Status why);
  // The rows that have no error so far.
  void NoteGood();
  // Rows whose session may be another server's by now count as not done, whatever the call did here.
  void CheckStillOurs();
  // The call's error: the first bad row's, which tells which rows have happened all the same.
  absl::Status Outcome() const;

  const ServiceContext& context_;
  std::vector<CallRow> rows_;
  std::vector<size_t> good_;  // rows_ index of each of Sessions()

 private:
  const bool partial_ok_;
  const bool numbered_;
};

}  // namespace gdn
