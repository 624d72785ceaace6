// AcceptTokens: accepts or drops drafts.
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/when_all.h"
#include "server/batcher/accept_execution.h"
#include "server/rpc/calls.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/steps/call_rows.h"
#include "server/rpc/steps/pin_sessions.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// The rows of one AcceptTokens call.
class AcceptRows final : public CallRows {
 public:
  AcceptRows(const StepParts& parts, const v1::AcceptTokensRequest& request)
      : CallRows(parts, request.partial_ok(), /*numbered=*/true), request_(request) {}

  // Checks the request, and looks up its sessions.
  absl::Status Find(const Caller& caller) {
    GDN_RETURN_IF_ERROR(CheckBatchSize("acceptances", request_.acceptances_size(), parts_.limits));
    GDN_RETURN_IF_ERROR(CheckRequestId(request_.request_id()));
    std::vector<CallRow> rows;
    for (const v1::DraftAcceptance& acceptance : request_.acceptances())
      rows.emplace_back().name = acceptance.session();
    GDN_RETURN_IF_ERROR(CallRows::Find(caller, std::move(rows)));
    requests_.resize(rows_.size());
    for (const size_t i : good_) {
      const v1::DraftAcceptance& acceptance = request_.acceptances(static_cast<int>(i));
      absl::StatusOr<Acceptance> accept =
          ReadAcceptance(acceptance.accepted_tokens(), acceptance.path(), parts_.limits.max_draft);
      if (!accept.ok()) {
        GDN_RETURN_IF_ERROR(Refuse(i, accept.status()));
        continue;
      }
      accept->request_id = request_.request_id();
      if (acceptance.has_session_epoch()) accept->epoch = acceptance.session_epoch();
      rows_[i].ahead = accept->accepted_tokens;
      requests_[i] = *std::move(accept);
    }
    NoteGood();
    return absl::OkStatus();
  }

  // Takes the leases of all layers with a draft, grouped by the device that has the session's states.
  absl::Status Admit() {
    for (const size_t i : good_) {
      CallRow& row = rows_[i];
      if (!row.status.ok()) continue;
      const Acceptance& accept = requests_[i];
      auto leases = row.session->AdmitAccept(row.pin, accept);
      if (!leases.ok()) GDN_RETURN_IF_ERROR(Refuse(i, leases.status()));
      if (!leases.ok() || leases->empty()) continue;
      DeviceRows& on_device = devices_[leases->front().pool()->device()];
      on_device.rows.push_back(i);
      for (StepLease& lease : *leases) {
        on_device.work.push_back(
            {.lease = std::move(lease), .accepted_tokens = accept.accepted_tokens, .path = accept.path});
      }
    }
    return absl::OkStatus();
  }

  // Accepts the rows of all devices at the same time; on each device all of its rows or none. If one device fails now,
  // its rows fail and those of the others are accepted.
  Task<void> Submit() {
    std::vector<Task<void>> devices;
    for (auto& [device, on_device] : devices_) devices.push_back(Accept(parts_.engines.at(device), on_device));
    co_await WhenAll(std::move(devices));
  }

  // The call's error, if it has one.
  absl::Status Finish() {
    CheckStillOurs();
    return Outcome();
  }

  void Answer(v1::AcceptTokensResponse& response) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      v1::SessionTokenCounts* counts = response.add_counts();
      counts->set_session(std::string(rows_[i].name));
      if (rows_[i].status.ok()) FillLayers(rows_[i].session->Layers(), counts->mutable_layers());
      if (partial_ok()) *response.add_row_statuses() = ToRpcStatus(RowError(i));
    }
  }

 private:
  struct DeviceRows {
    std::vector<size_t> rows;  // rows_ index
    std::vector<AcceptRow> work;
  };

  Task<void> Accept(Batcher& engine, DeviceRows& on_device) {
    // Before the leases are committed: a retry must find either the draft or the record.
    const auto committing = [this, &on_device] {
      for (const size_t i : on_device.rows) rows_[i].session->NoteAccepted(requests_[i]);
    };
    Task<absl::Status> accept = AcceptDrafts(engine, std::move(on_device.work), committing);
    const absl::Status status = co_await std::move(accept);
    for (const size_t i : on_device.rows) {
      CallRow& row = rows_[i];
      row.status = status;
      const absl::Status lost = row.session->CheckNotLost();
      if (!status.ok() && !lost.ok()) row.status = lost;
    }
  }

  const v1::AcceptTokensRequest& request_;
  std::vector<Acceptance> requests_;  // parallel to rows_
  std::map<int32_t, DeviceRows> devices_;
};

}  // namespace

Task<absl::Status> AcceptTokens(const StepParts& parts, const Caller& caller, const v1::AcceptTokensRequest& request,
                                v1::AcceptTokensResponse* response) {
  AcceptRows rows(parts, request);
  GDN_CO_RETURN_IF_ERROR(rows.Find(caller));
  const std::vector<SessionAhead> sessions = rows.Sessions();
  GDN_CO_RETURN_IF_ERROR(
      co_await WaitForCheckpoints(parts.checkpointer, sessions, /*layer=*/std::nullopt, caller.deadline));
  Residency::PinResults pins = co_await PinSessions(parts.residency, sessions, caller.deadline);
  GDN_CO_RETURN_IF_ERROR(rows.TakePins(std::move(pins)));
  GDN_CO_RETURN_IF_ERROR(rows.Admit());
  co_await rows.Submit();
  GDN_CO_RETURN_IF_ERROR(rows.Finish());
  rows.Answer(*response);
  co_return absl::OkStatus();
}

}  // namespace gdn
