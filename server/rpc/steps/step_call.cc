#include "server/rpc/steps/step_call.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "base/task/status_macros.h"
#include "server/rpc/steps/step_rows.h"
#include "server/rpc/transport/rpc_status.h"

namespace gdn {
namespace {

// Fills in the reply of a call that has a row for each session.
template <typename Response>
void AnswerRows(StepRows& rows, Response& response) {
  if (response.has_output()) rows.FinishOutput(*response.mutable_output());
  for (const CallRow& row : rows.all()) {
    response.add_token_counts(rows.TokenCount(row));
    response.add_durable_token_counts(rows.DurableTokenCount(row));
    if (!rows.partial_ok()) continue;
    *response.add_row_statuses() = ToRpcStatus(row.status);
    if (!row.status.ok()) rows.parts().common.stats.CountError(row.status);
  }
  response.set_compute_time_us(rows.compute_time_us());
  response.set_snapshot_loss_mark(rows.SnapshotLossMark());
}

}  // namespace

Task<absl::Status> RunStep(const StepParts& parts, Caller caller, const StepMessage& message, StepData data,
                           CallTrace* trace) {
  StepRows rows(parts, message, data, trace);
  GDN_CO_RETURN_IF_ERROR(message.CheckForm(data.in, parts.limits));
  std::vector<WantedSession> wanted = message.Wanted(parts.common.lookup, caller);
  co_await BringHere(parts.common.lookup, caller, std::move(wanted));
  GDN_CO_RETURN_IF_ERROR(rows.Find(caller));
  if (!rows.none_found()) {
    GDN_CO_RETURN_IF_ERROR(rows.CheckInput(caller));
    GDN_CO_RETURN_IF_ERROR(rows.TakeTokens(caller));
    GDN_CO_RETURN_IF_ERROR(rows.TakeOutput());
    const std::vector<SessionAhead> sessions = rows.Sessions();
    GDN_CO_RETURN_IF_ERROR(
        co_await WaitForCheckpoints(parts.checkpointer, sessions, rows.input().layer, caller.deadline));
    Residency::PinResults pins = co_await PinSessions(parts.residency, sessions, caller.deadline);
    GDN_CO_RETURN_IF_ERROR(rows.TakePins(std::move(pins)));
    // Even if this call is refused, it must wait for the calls that its rows have joined, because those write to the
    // rows.
    absl::Status begun = rows.Admit();
    if (begun.ok()) begun = rows.Submit();
    if (!begun.ok()) rows.DropJobs();
    const absl::Status here = co_await rows.open.All(caller.deadline.WithoutTime());
    if (!here.ok()) {
      rows.CancelJobs();
      co_await rows.open.All();
    }
    GDN_CO_RETURN_IF_ERROR(begun);
  }
  GDN_CO_RETURN_IF_ERROR(rows.Finish());
  message.Answer(rows);
  co_return absl::OkStatus();
}

// ---- Prefill

absl::Status PrefillMessage::CheckForm(const ReceivedTensors& in, const StepLimits& limits) const {
  GDN_RETURN_IF_ERROR(CheckMessageSize(in.message_bytes, limits));
  return CheckInputKind(request_).status();
}

std::vector<WantedSession> PrefillMessage::Wanted(const SessionLookup& lookup, const Caller& caller) const {
  return WantedIn(lookup, caller, request_);
}

std::vector<CallRow> PrefillMessage::Rows() const {
  std::vector<CallRow> rows(1);
  rows[0].name = request_.session();
  if (request_.has_expected_token_count()) rows[0].expected_token_count = request_.expected_token_count();
  if (request_.has_session_epoch()) rows[0].epoch = request_.session_epoch();
  return rows;
}

absl::StatusOr<CheckedInput> PrefillMessage::CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                                        const StepLimits& /*limits*/) const {
  return CheckPrefillInput(request_, in.bytes(), spec.dims, spec.has_partial_sums());
}

void PrefillMessage::Answer(StepRows& rows) const {
  rows.FinishOutput(*response_.mutable_output());
  response_.set_token_count(rows.all().front().token_count);
  response_.set_durable_token_count(rows.DurableTokenCount(rows.all().front()));
  response_.set_compute_time_us(rows.compute_time_us());
  response_.set_snapshot_loss_mark(rows.SnapshotLossMark());
}

// ---- Decode

absl::Status DecodeMessage::CheckForm(const ReceivedTensors& in, const StepLimits& limits) const {
  GDN_RETURN_IF_ERROR(CheckMessageSize(in.message_bytes, limits));
  GDN_RETURN_IF_ERROR(CheckInputKind(request_).status());
  return CheckBatchSize("sessions", request_.sessions_size(), limits);
}

std::vector<WantedSession> DecodeMessage::Wanted(const SessionLookup& lookup, const Caller& caller) const {
  return WantedIn(lookup, caller, request_);
}

std::vector<CallRow> DecodeMessage::Rows() const {
  std::vector<CallRow> rows(static_cast<size_t>(request_.sessions_size()));
  for (int i = 0; i < request_.sessions_size(); ++i) rows[static_cast<size_t>(i)].name = request_.sessions(i);
  // CheckInput refuses lists of another length.
  for (int i = 0; i < std::min(request_.expected_token_counts_size(), request_.sessions_size()); ++i) {
    rows[static_cast<size_t>(i)].expected_token_count = request_.expected_token_counts(i);
  }
  for (int i = 0; i < std::min(request_.session_epochs_size(), request_.sessions_size()); ++i) {
    rows[static_cast<size_t>(i)].epoch = request_.session_epochs(i);
  }
  return rows;
}

absl::StatusOr<CheckedInput> DecodeMessage::CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                                       const StepLimits& limits) const {
  return CheckDecodeInput(request_, in.bytes(), spec.dims, limits, spec.has_partial_sums());
}

void DecodeMessage::Answer(StepRows& rows) const { AnswerRows(rows, response_); }

// ---- Step

absl::Status MixedMessage::CheckForm(const ReceivedTensors& in, const StepLimits& limits) const {
  GDN_RETURN_IF_ERROR(CheckMessageSize(in.message_bytes, limits));
  GDN_RETURN_IF_ERROR(CheckInputKind(request_).status());
  return CheckBatchSize("rows", request_.rows_size(), limits);
}

std::vector<WantedSession> MixedMessage::Wanted(const SessionLookup& lookup, const Caller& caller) const {
  return WantedIn(lookup, caller, request_);
}

std::vector<CallRow> MixedMessage::Rows() const {
  std::vector<CallRow> rows(static_cast<size_t>(request_.rows_size()));
  for (int i = 0; i < request_.rows_size(); ++i) {
    const v1::StepRow& given = request_.rows(i);
    CallRow& row = rows[static_cast<size_t>(i)];
    row.name = given.session();
    if (given.has_expected_token_count()) row.expected_token_count = given.expected_token_count();
    if (given.has_session_epoch()) row.epoch = given.session_epoch();
  }
  return rows;
}

absl::StatusOr<CheckedInput> MixedMessage::CheckInput(const ReceivedTensors& in, const SessionSpec& spec,
                                                      const StepLimits& limits) const {
  return CheckStepInput(request_, in.bytes(), spec.dims, limits, spec.has_partial_sums());
}

void MixedMessage::Answer(StepRows& rows) const { AnswerRows(rows, response_); }

}  // namespace gdn
