// AcceptTokens: what becomes of drafts.
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/batcher/accept_execution.h"
#include "server/rpc/calls.h"
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

struct AcceptCall : std::enable_shared_from_this<AcceptCall> {
  struct Row {
    std::string name;
    Session::AcceptRequest request;
    std::shared_ptr<Session> session;
    SessionPin pin;
    absl::Status status;
  };
  // Rows whose states are on one device.
  struct Part {
    std::vector<size_t> rows;
    std::vector<AcceptRow> work;
  };

  AcceptCall(const ServiceContext& service, v1::AcceptTokensResponse* reply, CallDone when_done)
      : context(service), response(reply), done(std::move(when_done)) {}

  absl::Status RowError(size_t index) const {
    return WithMetadata(WithPrefix(rows[index].status, StrCat("row ", index, " (", rows[index].name, ")")), "session",
                        rows[index].name);
  }
  // The first bad row's error, where one refuses the call.
  absl::Status Refusal() const {
    for (size_t i = 0; i < rows.size() && !partial_ok; ++i) {
      if (!rows[i].status.ok()) return RowError(i);
    }
    return absl::OkStatus();
  }

  absl::Status Begin(const Caller& caller, const v1::AcceptTokensRequest& request) {
    GDN_RETURN_IF_ERROR(CheckBatchSize(request.acceptances_size(), context.limits));
    GDN_RETURN_IF_ERROR(CheckRequestId(request.request_id()));
    partial_ok = request.partial_ok();
    absl::flat_hash_set<std::string> names;
    for (const v1::DraftAcceptance& acceptance : request.acceptances()) {
      Row& row = rows.emplace_back();
      row.name = acceptance.session();
      row.request.accepted_tokens = acceptance.accepted_tokens();
      row.request.request_id = request.request_id();
      TakePath(acceptance, row.request);
      if (acceptance.has_session_epoch()) row.request.epoch = acceptance.session_epoch();
      if (!names.insert(row.name).second) {
        return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                         StrCat("row ", rows.size() - 1, " names ", row.name, " a second time"),
                         {{"session", row.name}});
      }
      auto session = FindSession(context, caller, row.name);
      row.status = session.status();
      if (session.ok()) row.session = *std::move(session);
      if (row.status.ok()) row.status = CheckAcceptance(acceptance, context.limits);
      if (row.status.ok() && row.request.accepted_tokens < 0) {
        row.status = MakeError(absl::StatusCode::kInvalidArgument, reason::kTooManyTokens,
                               StrCat("accepted_tokens is ", row.request.accepted_tokens, ", expected 0 or more"),
                               {{"found", StrCat(row.request.accepted_tokens)}});
      }
    }
    return Refusal();
  }

  // Once no row, from the first-th on, would take its session too far from its last checkpoint.
  void Pin(const WaitLimit& limit, size_t first = 0) {
    std::vector<std::shared_ptr<Session>> sessions;
    for (size_t i = 0; i < rows.size(); ++i) {
      const Row& row = rows[i];
      if (!row.status.ok()) continue;
      const auto again = [self = shared_from_this(), limit, i] { self->Pin(limit, i); };
      if (i >= first &&
          !context.checkpointer.WaitForRoom(row.session, std::nullopt, row.request.accepted_tokens, again)) {
        return;
      }
      sessions.push_back(row.session);
    }
    if (sessions.empty()) return Finish(absl::OkStatus());
    context.residency.Pin(std::move(sessions), limit, [self = shared_from_this()](Residency::PinResults pins) {
      size_t next = 0;
      for (Row& row : self->rows) {
        if (!row.status.ok()) continue;
        row.status = pins[next].status();
        if (row.status.ok()) row.pin = *std::move(pins[next]);
        ++next;
      }
      self->Accept();
    });
  }

  void Accept() {
    if (absl::Status refusal = Refusal(); !refusal.ok()) return Finish(std::move(refusal));
    std::map<int32_t, Part> parts;  // by device
    for (size_t i = 0; i < rows.size(); ++i) {
      Row& row = rows[i];
      if (!row.status.ok()) continue;
      auto leases = row.session->AdmitAccept(row.pin, row.request);
      row.status = leases.status();
      if (!leases.ok()) continue;
      if (leases->empty()) continue;
      Part& part = parts[leases->front().pool()->device()];
      part.rows.push_back(i);
      for (StepLease& lease : *leases) {
        part.work.push_back(
            {.lease = std::move(lease), .accepted_tokens = row.request.accepted_tokens, .path = row.request.path});
      }
    }
    if (absl::Status refusal = Refusal(); !refusal.ok()) return Finish(std::move(refusal));  // the leases die
    parts_left = static_cast<int>(parts.size()) + 1;
    for (auto& [device, part] : parts) AcceptOn(device, std::move(part));
    PartDone();
  }

  void AcceptOn(int32_t device, Part part) {
    const auto of = std::make_shared<const std::vector<size_t>>(std::move(part.rows));
    const auto self = shared_from_this();
    const auto committing = [self, of] {  // first: a retry must find either the draft or the record
      for (const size_t i : *of) self->rows[i].session->NoteAccepted(self->rows[i].request);
    };
    AcceptDrafts(context.engines.at(device), std::move(part.work), committing, [self, of](const absl::Status& status) {
      for (const size_t i : *of) {
        Row& row = self->rows[i];
        row.status = status;
        if (const absl::Status lost = row.session->CheckNotLost(); !status.ok() && !lost.ok()) row.status = lost;
      }
      self->PartDone();
    });
  }

  // Rows on a device that fails now are refused beside the others, which are accepted.
  void PartDone() {
    if (parts_left.fetch_sub(1) != 1) return;
    std::vector<size_t> applied;
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i].status.ok()) applied.push_back(i);
    }
    Finish(WithAppliedRows(Refusal(), applied));
  }

  // As StepCall::CheckStillOurs.
  void CheckStillOurs() {
    if (!context.environment.shares_sessions()) return;
    const absl::Status ours = context.environment.CheckOurs();
    for (Row& row : rows) {
      if (row.status.ok() && row.session != nullptr) row.status = ours.ok() ? row.session->CheckNotLost() : ours;
    }
  }

  void Finish(absl::Status status) {
    if (status.ok()) {
      CheckStillOurs();
      status = Refusal();
    }
    if (status.ok()) {
      for (size_t i = 0; i < rows.size(); ++i) {
        v1::SessionTokenCounts* counts = response->add_counts();
        counts->set_session(rows[i].name);
        if (rows[i].status.ok()) FillLayers(rows[i].session->Layers(), counts->mutable_layers());
        if (partial_ok) *response->add_row_statuses() = ToRpcStatus(rows[i].status.ok() ? rows[i].status : RowError(i));
      }
    }
    rows.clear();
    done(std::move(status));
  }

  const ServiceContext& context;
  v1::AcceptTokensResponse* const response;
  CallDone done;
  bool partial_ok = false;
  std::vector<Row> rows;
  std::atomic<int> parts_left{0};
};

}  // namespace

void AcceptTokens(const ServiceContext& context, const Caller& caller, const v1::AcceptTokensRequest& request,
                  v1::AcceptTokensResponse* response, CallDone done) {
  auto call = std::make_shared<AcceptCall>(context, response, std::move(done));
  if (absl::Status status = call->Begin(caller, request); !status.ok()) return call->Finish(std::move(status));
  call->Pin(caller.limit);
}

}  // namespace gdn
