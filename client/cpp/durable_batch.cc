#include "client/cpp/durable_batch.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/step_rows.h"

namespace gdn {
namespace {

absl::Status OddReply(const std::string& what) {
  return MakeError(absl::StatusCode::kInternal, reason::kInternal, what);
}

absl::Status CheckEntries(const std::string& what, size_t found, size_t sessions) {
  if (found == sessions) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidLengths,
                   StrCat(what, " has ", found, " entries, expected ", sessions, ", one for each session"),
                   {{"field", what}});
}

// Copies `count` entries of `part`, from `from` on, to the entries of `whole` from `to` on. If `whole` is empty, it
// becomes like `part` with `total` entries.
void PutEntries(const v1::Tensor& part, size_t from, size_t to, size_t count, size_t total, v1::Tensor* whole) {
  if (count == 0 && total > 0) return;  // an output of no tokens does not show how long a token is
  const size_t bytes = count == 0 ? 0 : part.data().size() / static_cast<size_t>(part.shape(0));
  if (whole->shape_size() == 0) {
    whole->set_dtype(part.dtype());
    *whole->mutable_shape() = part.shape();
    whole->set_shape(0, static_cast<int64_t>(total));
    whole->mutable_data()->resize(bytes * total);
  }
  whole->mutable_data()->replace(to * bytes, count * bytes, part.data(), from * bytes, count * bytes);
}

}  // namespace

DurableBatch::DurableBatch(Client& client, DurableSessionOptions options)
    : client_(client), options_(options), id_prefix_(RandomId()) {}

absl::Status DurableBatch::Check(absl::Span<DurableSession* const> sessions) const {
  if (sessions.empty()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kBatchTooLarge, "the batch has no session",
                     {{"found", "0"}, {"expected", "1 or more"}});
  }
  std::set<std::string> names;
  for (const DurableSession* const session : sessions) {
    if (&session->client_ != &client_) {
      return absl::InvalidArgumentError(AbslView(StrCat(session->name(), " is of another Client than the batch")));
    }
    if (names.insert(session->name()).second) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                     StrCat(session->name(), " stands in the batch twice; its steps are serial"),
                     {{"session", session->name()}});
  }
  return absl::OkStatus();
}

std::vector<absl::Status> DurableBatch::Run(absl::Span<DurableSession* const> sessions,
                                            absl::FunctionRef<absl::Status(size_t)> begin, SendRows send) {
  std::vector<Row> rows;
  for (size_t i = 0; i < sessions.size(); ++i) {
    absl::Status begun = begin(i);
    const bool pending = begun.ok();
    rows.push_back({.session = sessions[i], .status = std::move(begun), .pending = pending});
  }
  Backoff backoff = DurableSession::NewBackoff(options_);
  for (;;) {
    // What can be sent at once does not wait for what has to be brought back first.
    for (const bool astray : {false, true}) TryOnce(rows, astray, backoff, send);
    const auto waits = std::find_if(rows.begin(), rows.end(), [](const Row& row) { return row.pending; });
    if (waits == rows.end()) break;
    const absl::Status wait = backoff.Wait(waits->status);
    for (Row& row : rows) {
      if (!row.pending) continue;
      if (wait.ok()) {
        ++row.session->stats_.retries;
        continue;
      }
      row.session->GiveUp();
      row.status = TimeIsOver(row.status);
      row.pending = false;
    }
  }
  std::vector<absl::Status> statuses;
  for (Row& row : rows) statuses.push_back(std::move(row.status));
  return statuses;
}

void DurableBatch::TryOnce(std::vector<Row>& rows, bool astray, const Backoff& backoff, SendRows send) {
  const std::string new_id = StrCat(id_prefix_, "-", next_request_++);
  std::vector<Row*> tried;
  std::map<std::string, std::vector<size_t>> calls;  // by request id: a row that may have been applied keeps its own
  for (size_t i = 0; i < rows.size(); ++i) {
    DurableSession& session = *rows[i].session;
    if (!rows[i].pending || session.astray_ != astray) continue;
    tried.push_back(&rows[i]);
    rows[i].status = session.Prepare(backoff);
    if (!rows[i].status.ok()) continue;
    std::string& id = session.in_flight_->request_id;
    if (id.empty()) id = new_id;
    calls[id].push_back(i);
  }
  for (const auto& [id, members] : calls) {
    CallOptions call = rows[members.front()].session->TryOptions(backoff);
    call.timeout = std::min(options_.try_timeout, *call.timeout);
    const std::vector<absl::Status> statuses = send(members, id, call, backoff);
    for (size_t k = 0; k < members.size(); ++k) rows[members[k]].status = statuses[k];
  }
  for (Row* const row : tried) row->pending = !row->status.ok() && row->session->TryAgainAfter(row->status);
}

template <typename Response>
std::vector<absl::Status> DurableBatch::TakeRows(absl::Span<DurableSession* const> sessions,
                                                 const std::vector<size_t>& rows, const absl::StatusOr<Response>& reply,
                                                 const RowBounds& first, v1::Tensor* output) {
  if (!reply.ok()) return std::vector<absl::Status>(rows.size(), reply.status());
  size_t entries = 0;
  for (const size_t row : rows) entries += first[row + 1] - first[row];
  const auto count = static_cast<int>(rows.size());
  const v1::Tensor& tensor = reply->output();
  const bool any = std::any_of(reply->row_statuses().begin(), reply->row_statuses().end(),
                               [](const google::rpc::Status& status) { return status.code() == 0; });
  if (reply->token_counts_size() != count || reply->row_statuses_size() != count ||
      reply->durable_token_counts_size() != count ||
      (any && (tensor.shape_size() == 0 || tensor.shape(0) != static_cast<int64_t>(entries) ||
               tensor.data().size() % std::max<size_t>(entries, 1) != 0))) {
    return std::vector<absl::Status>(
        rows.size(),
        OddReply(StrCat("a call of ", count, " sessions was answered with ", reply->token_counts_size(),
                        " token counts and ", reply->row_statuses_size(), " statuses, or rows of odd lengths")));
  }
  std::vector<absl::Status> statuses;
  const size_t bytes = tensor.data().size() / std::max<size_t>(entries, 1);
  size_t from = 0;
  for (size_t k = 0; k < rows.size(); ++k) {
    const auto i = static_cast<int>(k);
    const size_t own = first[rows[k] + 1] - first[rows[k]];
    absl::Status status = StatusFromRpc(reply->row_statuses(i));
    if (status.ok()) {
      status = sessions[rows[k]]->FinishStep(
          {.token_count = reply->token_counts(i),
           .durable_token_count = reply->durable_token_counts(i),
           .output = HashBytes(std::string_view(tensor.data()).substr(from * bytes, own * bytes))});
      if (status.ok()) PutEntries(tensor, from, first[rows[k]], own, first.back(), output);
    }
    from += own;
    statuses.push_back(std::move(status));
  }
  return statuses;
}

std::vector<absl::Status> DurableBatch::SendDecode(absl::Span<DurableSession* const> sessions,
                                                   const std::vector<size_t>& rows, const std::string& id,
                                                   const CallOptions& call, const RowBounds& first,
                                                   v1::Tensor* output) {
  std::vector<v1::DecodeRequest*> parts;
  for (const size_t row : rows) parts.push_back(&std::get<v1::DecodeRequest>(sessions[row]->step()));
  v1::DecodeRequest request = JoinRows(parts);
  for (const size_t row : rows) sessions[row]->AddRowTo(request, sessions[row]->token_count(request.layer()));
  request.set_partial_ok(true);
  request.set_request_id(id);
  return TakeRows(sessions, rows, client_.Decode(request, call), first, output);
}

std::vector<absl::Status> DurableBatch::SendStep(absl::Span<DurableSession* const> sessions,
                                                 const std::vector<size_t>& rows, const std::string& id,
                                                 const CallOptions& call, const Backoff& backoff,
                                                 const RowBounds& first, v1::Tensor* output) {
  if (!client_.StepIsUnimplemented()) {
    std::vector<SessionStep*> parts;
    for (const size_t row : rows) parts.push_back(&sessions[row]->step());
    v1::StepRequest request = JoinStep(parts);
    for (const size_t row : rows) sessions[row]->AddRowTo(request);
    request.set_partial_ok(true);
    request.set_request_id(id);
    const absl::StatusOr<v1::StepResponse> reply = client_.Step(request, call);
    const bool older = reply.status().code() == absl::StatusCode::kUnimplemented && client_.StepIsUnimplemented();
    if (!older) return TakeRows(sessions, rows, reply, first, output);
  }
  std::vector<absl::Status> statuses;
  for (const size_t row : rows) {
    const absl::StatusOr<DurableSession::Reply> reply = sessions[row]->SendRowInParts(backoff);
    statuses.push_back(reply.ok() ? sessions[row]->FinishStep(reply->result) : reply.status());
    if (!statuses.back().ok()) continue;
    PutEntries(std::get<v1::StepResponse>(reply->message).output(), 0, first[row], first[row + 1] - first[row],
               first.back(), output);
  }
  return statuses;
}

absl::StatusOr<DurableBatch::Reply> DurableBatch::Decode(absl::Span<DurableSession* const> sessions,
                                                         v1::DecodeRequest request) {
  GDN_RETURN_IF_ERROR(Check(sessions));
  GDN_RETURN_IF_ERROR(CheckInMessage(request));
  GDN_ASSIGN_OR_RETURN(std::vector<v1::DecodeRequest> parts,
                       CutRows(std::move(request), static_cast<int>(sessions.size())));
  RowBounds first(sessions.size() + 1);
  std::iota(first.begin(), first.end(), size_t{0});
  Reply reply;
  reply.rows = Run(
      sessions, [&](size_t row) { return sessions[row]->BeginStep(std::move(parts[row])); },
      [&](const std::vector<size_t>& rows, const std::string& id, const CallOptions& call, const Backoff&) {
        return SendDecode(sessions, rows, id, call, first, &reply.output);
      });
  return reply;
}

absl::StatusOr<DurableBatch::Reply> DurableBatch::Step(absl::Span<DurableSession* const> sessions,
                                                       v1::StepRequest request) {
  GDN_RETURN_IF_ERROR(Check(sessions));
  GDN_RETURN_IF_ERROR(CheckInMessage(request));
  GDN_ASSIGN_OR_RETURN(std::vector<RowStep> parts, CutStep(std::move(request)));
  GDN_RETURN_IF_ERROR(CheckEntries("rows", parts.size(), sessions.size()));
  RowBounds first = {0};
  for (const RowStep& part : parts) first.push_back(first.back() + static_cast<size_t>(StepTokens(part.alone)));
  Reply reply;
  reply.rows = Run(
      sessions, [&](size_t row) { return sessions[row]->BeginRow(std::move(parts[row])); },
      [&](const std::vector<size_t>& rows, const std::string& id, const CallOptions& call, const Backoff& backoff) {
        return SendStep(sessions, rows, id, call, backoff, first, &reply.output);
      });
  return reply;
}

absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> DurableBatch::AcceptTokens(
    absl::Span<DurableSession* const> sessions, absl::Span<const int32_t> accepted_tokens) {
  std::vector<DraftChoice> choices;
  for (const int32_t tokens : accepted_tokens) choices.push_back({.first_tokens = tokens});
  return Accept(sessions, choices, "accepted_tokens");
}

absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> DurableBatch::AcceptPaths(
    absl::Span<DurableSession* const> sessions, absl::Span<const std::vector<int32_t>> paths) {
  std::vector<DraftChoice> choices;
  for (const std::vector<int32_t>& path : paths) choices.push_back({.path = path});
  return Accept(sessions, choices, "paths");
}

absl::StatusOr<std::vector<absl::StatusOr<v1::SessionTokenCounts>>> DurableBatch::Accept(
    absl::Span<DurableSession* const> sessions, const std::vector<DraftChoice>& choices, const std::string& what) {
  GDN_RETURN_IF_ERROR(Check(sessions));
  GDN_RETURN_IF_ERROR(CheckEntries(what, choices.size(), sessions.size()));
  std::vector<absl::StatusOr<v1::SessionTokenCounts>> counts(sessions.size());
  const auto send = [&](const std::vector<size_t>& rows, const std::string& id, const CallOptions& call,
                        const Backoff&) {
    v1::AcceptTokensRequest request;
    for (const size_t row : rows) sessions[row]->AddRowTo(request, sessions[row]->ChoiceToSend(choices[row]));
    request.set_partial_ok(true);
    request.set_request_id(id);
    const absl::StatusOr<v1::AcceptTokensResponse> reply = client_.AcceptTokens(request, call);
    const auto count = static_cast<int>(rows.size());
    absl::Status whole = reply.status();
    if (reply.ok() && (reply->counts_size() != count || reply->row_statuses_size() != count)) {
      whole = OddReply(StrCat("AcceptTokens of ", count, " sessions was answered with ", reply->counts_size(),
                              " entries and ", reply->row_statuses_size(), " statuses"));
    }
    std::vector<absl::Status> statuses(rows.size(), whole);
    for (size_t k = 0; k < rows.size() && whole.ok(); ++k) {
      statuses[k] = StatusFromRpc(reply->row_statuses(static_cast<int>(k)));
      if (!statuses[k].ok()) continue;
      counts[rows[k]] = reply->counts(static_cast<int>(k));
      statuses[k] = sessions[rows[k]]->FinishAccept(*counts[rows[k]]);
    }
    return statuses;
  };
  const std::vector<absl::Status> statuses = Run(
      sessions, [&](size_t row) { return sessions[row]->BeginAccept(choices[row]); }, send);
  for (size_t row = 0; row < sessions.size(); ++row) {
    if (!statuses[row].ok()) counts[row] = statuses[row];
  }
  return counts;
}

}  // namespace gdn
