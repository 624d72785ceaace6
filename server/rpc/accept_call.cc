// AcceptTokens: what becomes of drafts.
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/arrivals.h"
#include "base/task/status_macros.h"
#include "server/batcher/accept_execution.h"
#include "server/rpc/calls.h"
#include "server/rpc/pin_sessions.h"
#include "server/rpc/rpc_status.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// A path of the draft's first tokens is a count.
void TakePath(const v1::DraftAcceptance& acceptance, Session::AcceptRequest& request) {
  if (acceptance.path_size() == 0) return;
  request.accepted_tokens = acceptance.path_size();
  for (int i = 0; i < acceptance.path_size(); ++i) {
    if (acceptance.path(i) == i) continue;
    request.path.assign(acceptance.path().begin(), acceptance.path().end());
    return;
  }
}

absl::Status CheckAcceptance(const v1::DraftAcceptance& acceptance, const StepLimits& limits) {
  if (acceptance.path_size() > 0 && acceptance.accepted_tokens() != 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidLengths,
                     StrCat("path is given beside accepted_tokens, which is ", acceptance.accepted_tokens(),
                            "; expected one of the two"),
                     {{"field", "path"}});
  }
  if (acceptance.path_size() <= limits.max_draft) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                   StrCat("path has ", acceptance.path_size(), " tokens, expected at most ", limits.max_draft),
                   {{"found", StrCat(acceptance.path_size())}, {"expected", StrCat("0 .. ", limits.max_draft)}});
}

// The rows of one call, on their way from sessions to the engines and back.
class AcceptRows {
 public:
  struct Row {
    std::string name;
    Session::AcceptRequest request;
    std::shared_ptr<Session> session;
    SessionPin pin;
    absl::Status status;
  };

  AcceptRows(const ServiceContext& context, bool partial_ok) : context_(context), partial_ok_(partial_ok) {}

  std::vector<Row>& all() { return rows_; }
  Row& good(size_t i) { return rows_[good_[i]]; }
  size_t good_rows() const { return good_.size(); }

  // The first bad row's error, if it refuses the call.
  absl::Status Refusal() const {
    for (size_t i = 0; i < rows_.size() && !partial_ok_; ++i) {
      if (!rows_[i].status.ok()) return RowError(i);
    }
    return absl::OkStatus();
  }
  absl::Status RowError(size_t index) const {
    return WithMetadata(WithPrefix(rows_[index].status, StrCat("row ", index, " (", rows_[index].name, ")")), "session",
                        rows_[index].name);
  }

  // Checks the request, and looks up its sessions.
  absl::Status Find(const Caller& caller, const v1::AcceptTokensRequest& request) {
    GDN_RETURN_IF_ERROR(CheckBatchSize(request.acceptances_size(), context_.limits));
    GDN_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
    absl::flat_hash_set<std::string> names;
    for (const v1::DraftAcceptance& acceptance : request.acceptances()) {
      Row& row = rows_.emplace_back();
      row.name = acceptance.session();
      row.request.accepted_tokens = acceptance.accepted_tokens();
      row.request.request_id = request.request_id();
      TakePath(acceptance, row.request);
      if (acceptance.has_session_epoch()) row.request.epoch = acceptance.session_epoch();
      if (!names.insert(row.name).second) {
        return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                         StrCat("row ", rows_.size() - 1, " names ", row.name, " a second time"),
                         {{"session", row.name}});
      }
      auto session = FindSession(context_, caller, row.name);
      row.status = session.status();
      if (session.ok()) row.session = *std::move(session);
      if (row.status.ok()) row.status = CheckAcceptance(acceptance, context_.limits);
      if (row.status.ok() && row.request.accepted_tokens < 0) {
        row.status = MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                               StrCat("accepted_tokens is ", row.request.accepted_tokens, ", expected 0 or more"),
                               {{"found", StrCat(row.request.accepted_tokens)}});
      }
      if (row.status.ok()) good_.push_back(rows_.size() - 1);
    }
    return Refusal();
  }

  absl::Status TakePins(Residency::PinResults pins) {
    for (size_t i = 0; i < pins.size(); ++i) {
      good(i).status = pins[i].status();
      if (pins[i].ok()) good(i).pin = *std::move(pins[i]);
    }
    return Refusal();
  }

  // Takes the leases of all layers with a draft, by the device that has the session's states.
  absl::Status Admit() {
    for (const size_t i : good_) {
      Row& row = rows_[i];
      if (!row.status.ok()) continue;
      auto leases = row.session->AdmitAccept(row.pin, row.request);
      row.status = leases.status();
      if (!leases.ok() || leases->empty()) continue;
      DeviceRows& on_device = devices_[leases->front().pool()->device()];
      on_device.rows.push_back(i);
      for (StepLease& lease : *leases) {
        on_device.work.push_back(
            {.lease = std::move(lease), .accepted_tokens = row.request.accepted_tokens, .path = row.request.path});
      }
    }
    return Refusal();
  }

  // On each device all of its rows or none; `open` has the devices until they end. Rows on a device that fails now are
  // refused beside the others, which are accepted.
  void Submit() {
    open.Begin(static_cast<int>(devices_.size()));
    for (auto& [device, on_device] : devices_) {
      DeviceRows* const of = &on_device;
      const auto committing = [this, of] {  // first: a retry must find either the draft or the record
        for (const size_t i : of->rows) rows_[i].session->NoteAccepted(rows_[i].request);
      };
      AcceptDrafts(context_.engines.at(device), std::move(on_device.work), committing,
                   [this, of](const absl::Status& status) {
                     for (const size_t i : of->rows) {
                       Row& row = rows_[i];
                       row.status = status;
                       const absl::Status lost = row.session->CheckNotLost();
                       if (!status.ok() && !lost.ok()) row.status = lost;
                     }
                     open.End();
                   });
    }
  }

  // Takes the results. The call's error, if it has one.
  absl::Status Finish() {
    std::vector<size_t> applied;
    for (size_t i = 0; i < rows_.size(); ++i) {
      if (rows_[i].status.ok()) applied.push_back(i);
    }
    GDN_RETURN_IF_ERROR(WithAppliedRows(Refusal(), applied));
    // As StepRows::CheckStillOurs.
    if (!context_.environment.shares_sessions()) return absl::OkStatus();
    const absl::Status ours = context_.environment.CheckOurs();
    for (const size_t i : applied) {
      rows_[i].status = ours.ok() && rows_[i].session != nullptr ? rows_[i].session->CheckNotLost() : ours;
    }
    return Refusal();
  }

  void Answer(v1::AcceptTokensResponse& response) const {
    for (size_t i = 0; i < rows_.size(); ++i) {
      v1::SessionTokenCounts* counts = response.add_counts();
      counts->set_session(rows_[i].name);
      if (rows_[i].status.ok()) FillLayers(rows_[i].session->Layers(), counts->mutable_layers());
      if (partial_ok_) {
        *response.add_row_statuses() = ToRpcStatus(rows_[i].status.ok() ? rows_[i].status : RowError(i));
      }
    }
  }

  Arrivals open;  // acceptances on their way

 private:
  struct DeviceRows {
    std::vector<size_t> rows;  // rows_ index
    std::vector<AcceptRow> work;
  };

  const ServiceContext& context_;
  const bool partial_ok_;
  std::vector<Row> rows_;
  std::vector<size_t> good_;  // rows_ index of those that passed Find
  std::map<int32_t, DeviceRows> devices_;
};

}  // namespace

Task<absl::Status> AcceptTokens(const ServiceContext& context, const Caller& caller,
                                const v1::AcceptTokensRequest& request, v1::AcceptTokensResponse* response) {
  AcceptRows rows(context, request.partial_ok());
  GDN_CO_RETURN_IF_ERROR(rows.Find(caller, request));
  std::vector<SessionAhead> sessions;
  for (size_t i = 0; i < rows.good_rows(); ++i) {
    sessions.push_back({.session = rows.good(i).session, .tokens = rows.good(i).request.accepted_tokens});
  }
  co_await WaitForCheckpoints(context.checkpointer, sessions, /*layer=*/std::nullopt);
  Residency::PinResults pins = co_await Pin(context.residency, sessions, caller.limit);
  GDN_CO_RETURN_IF_ERROR(rows.TakePins(std::move(pins)));
  GDN_CO_RETURN_IF_ERROR(rows.Admit());
  rows.Submit();
  co_await rows.open.All();
  GDN_CO_RETURN_IF_ERROR(rows.Finish());
  rows.Answer(*response);
  co_return absl::OkStatus();
}

}  // namespace gdn
