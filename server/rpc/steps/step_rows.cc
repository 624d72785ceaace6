#include "server/rpc/steps/step_rows.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/transport/rpc_status.h"
#include "server/session/durable/foreign_state.h"
#include "server/session/session_errors.h"
#include "server/validation/tensor.h"

namespace gdn {

StepRows::StepRows(const StepParts& parts, const StepMessage& message, StepData data, CallTrace* trace)
    : CallRows(parts, message.partial_ok(), message.numbered()), message_(message), data_(data), trace_(trace) {}

StepRows::~StepRows() {
  if (metered_ != nullptr) parts_.common.access.ledger.GiveTokensBack(std::move(metered_), taken_tokens_);
}

// ---- Sessions and inputs

absl::Status StepRows::Find(const Caller& caller) {
  std::vector<CallRow> rows = message_.Rows();
  deadline_ = caller.deadline.time();
  principal_ = caller.principal;
  if (trace_ != nullptr) {
    trace_->session = std::string(rows.front().name);
    trace_->rows = static_cast<int32_t>(rows.size());
  }
  GDN_RETURN_IF_ERROR(CallRows::Find(caller, std::move(rows)));
  if (!good_.empty()) spec_ = &rows_[good_.front()].session->spec();
  return absl::OkStatus();
}

absl::Status StepRows::CheckSameSpec() const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].session == nullptr) continue;
    const SessionSpec& other = rows_[i].session->spec();
    if (other.model == spec_->model && other.dims == spec_->dims) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kMixedSessions,
                     StrCat("row ", i, " (", rows_[i].name, ") is of ",
                            other.model.empty() ? LayerDimsToString(other.dims) : other.model, ", row 0's is ",
                            spec_->model.empty() ? LayerDimsToString(spec_->dims) : spec_->model,
                            "; one call takes sessions of one model or one operator spec"),
                     {{"session", std::string(rows_[i].name)}});
  }
  return absl::OkStatus();
}

absl::Status StepRows::CheckInput(const Caller& caller) {
  GDN_RETURN_IF_ERROR(CheckSameSpec());
  GDN_ASSIGN_OR_RETURN(input_, message_.CheckInput(data_.in, *spec_, parts_.limits));
  if (SharedTensors::UsedBy(input_)) {
    GDN_RETURN_IF_ERROR(shared_.Load(parts_.shared_regions, caller.principal, data_.in.message_bytes, parts_.limits,
                                     parts_.call_memory, data_.charge, input_));
  }
  for (const size_t i : good_) {
    absl::Status values = CheckRowValues(input_, input_.rows[i]);
    if (!values.ok()) GDN_RETURN_IF_ERROR(Refuse(i, std::move(values)));
    rows_[i].ahead = input_.rows[i].counted_tokens();
  }
  NoteGood();
  for (const CheckedRow& row : input_.rows) {
    if (trace_ != nullptr) trace_->tokens += row.tokens;
  }
  return absl::OkStatus();
}

// ---- What the step needs before it may run

absl::Status StepRows::TakeTokens(const Caller& caller) {
  if (!parts_.common.access.ledger.MetersTokens(*caller.account)) return absl::OkStatus();
  int64_t tokens = 0;
  for (const size_t i : good_) tokens += input_.rows[i].tokens;
  GDN_RETURN_IF_ERROR(
      parts_.common.access.ledger.TakeTokens(caller.account, tokens, parts_.rate_clock.Now().ToNanos()));
  metered_ = caller.account;
  taken_tokens_ = tokens;
  return absl::OkStatus();
}

absl::Status StepRows::TakeOutput() {
  v1::Tensor& output = message_.output();
  output.set_dtype(ToProto(input_.shape.output_dtype));
  for (const int64_t dim : input_.output_shape) output.add_shape(dim);
  data_.out.bytes = input_.shape.OutputBytes(input_.tokens);
  if (data_.out.bytes == 0) return absl::OkStatus();
  // A stored reply needs a second copy of the row. After the step that copy is charged to the pool of stored replies.
  size_t bytes = data_.out.bytes;
  for (const CheckedRow& row : input_.rows) {
    if (KeepsOutput(row)) bytes += input_.shape.OutputBytes(row.tokens);
  }
  GDN_RETURN_IF_ERROR(data_.charge.TryGrow(static_cast<int64_t>(bytes)));
  GDN_ASSIGN_OR_RETURN(data_.out.block, parts_.call_memory.TakeForCall(data_.out.bytes));
  output_ = data_.out.block.chars();
  // The padding behind each row.
  for (size_t i = 0; i < rows_.size(); ++i) {
    char* const end = OutputOf(i).end();
    char* const next = i + 1 < rows_.size() ? OutputOf(i + 1).begin() : output_ + data_.out.bytes;
    std::memset(end, 0, static_cast<size_t>(next - end));
  }
  return absl::OkStatus();
}

absl::Span<char> StepRows::OutputOf(size_t index) const {
  if (output_ == nullptr) return {};
  const CheckedRow& row = input_.rows[index];
  return {output_ + input_.shape.OutputBytes(row.first), input_.shape.OutputBytes(row.tokens)};
}

bool StepRows::KeepsOutput(const CheckedRow& row) const {
  const auto bytes = static_cast<int64_t>(input_.shape.OutputBytes(row.tokens));
  return !input_.request_id.empty() && bytes <= parts_.limits.max_stored_reply_bytes;
}

// ---- From pinned rows to the engines and back

absl::Status StepRows::CopyReply(size_t index, const StoredReply& reply) {
  const std::string& id = rows_[index].session->id();
  if (reply.output_dropped) return ReplyDropped(id, input_.layer, input_.request_id, reply.token_count);
  const size_t bytes = input_.shape.OutputBytes(input_.rows[index].tokens);
  if (reply.output.size() != bytes) {
    return ReplyDoesNotFit(id, input_.layer, reply, static_cast<int64_t>(bytes));
  }
  if (bytes > 0) std::memcpy(OutputOf(index).data(), reply.output.data(), bytes);
  rows_[index].token_count = reply.token_count;
  NoteComputeTime(reply.compute_time_us);
  return absl::OkStatus();
}

StepJobPtr StepRows::MakeJob(int32_t device, RowKind kind) const {
  auto job = std::make_shared<StepJob>();
  job->prefill = kind == RowKind::kPrefill;
  job->shape = input_.shape;
  job->draft = kind == RowKind::kDraft;
  job->deadline = deadline_;
  job->page_locked = data_.in.bytes() != nullptr;
  if (!spec_->model.empty()) {
    const auto& layers = parts_.models.at(spec_->model).LayersOn(device);
    // If the layer does not exist, Admit returns the better error.
    if (const auto it = layers.find(input_.layer); it != layers.end()) job->weights = &it->second;
  }
  job->rows.reserve(kind == RowKind::kPrefill ? 1 : good_.size());
  return job;
}

StepRows::JobRows& StepRows::RowsFor(int32_t device, RowKind kind) {
  const auto shares = [&](const JobRows& rows) { return rows.device == device && rows.kind == kind; };
  const auto it = kind == RowKind::kPrefill ? jobs_.end() : std::ranges::find_if(jobs_, shares);
  if (it != jobs_.end()) return *it;
  return jobs_.emplace_back(JobRows{.device = device, .kind = kind, .job = MakeJob(device, kind), .rows = {}});
}

absl::Status StepRows::AdmitRow(size_t index) {
  CallRow& row = rows_[index];
  const CheckedRow& checked = input_.rows[index];
  StepRequest request{.layer = input_.layer,
                      .kind = input_.shape.kind,
                      .request_id = input_.request_id,
                      .payload = {},
                      .tokens = checked.tokens,
                      .epoch = row.epoch,
                      .expected_token_count = row.expected_token_count,
                      .accept_before = checked.accept_before};
  if (!request.request_id.empty()) request.payload = HashRow(input_, checked);
  JoinedCall* joined = nullptr;
  if (!request.request_id.empty()) {
    joined_.resize(rows_.size());  // allocated at the first row
    joined = &joined_[index];
    joined->ended = &open;
  }
  open.Begin();  // in case the row joins a step, which may end before Admit returns
  absl::StatusOr<Admission> admission = row.session->Admit(std::move(row.pin), request, joined);
  if (admission.ok() && admission->joined) {
    if (trace_ != nullptr) trace_->waits_for_another = true;
    return absl::OkStatus();
  }
  open.Withdraw(1);
  if (joined != nullptr) joined->ended = nullptr;
  GDN_RETURN_IF_ERROR(admission.status());
  if (admission->stored != nullptr) return CopyReply(index, *admission->stored);
  // An acceptance alone changes the log in place, as a decode does.
  const bool only_accepts = checked.tokens == 0 && checked.accept_before.has_value();
  JobRows& to = RowsFor(admission->lease.pool()->device(), only_accepts ? RowKind::kDecode : checked.kind);
  StepRow& step = to.job->rows.emplace_back();
  step.lease = std::move(admission->lease);
  step.tokens = checked.tokens;
  step.parents = checked.parents;
  if (checked.accept_before.has_value()) step.accept_before = &*checked.accept_before;
  to.job->tree |= !step.parents.empty();
  for (size_t f = 0; f < input_.fields.size(); ++f) step.inputs[f] = input_.RowData(f, checked);
  step.output = OutputOf(index).data();
  step.keep_reply = !request.request_id.empty();
  step.keep_output = KeepsOutput(checked);
  to.rows.push_back(index);
  return absl::OkStatus();
}

absl::Status StepRows::Admit() {
  for (const size_t i : good_) {
    if (!rows_[i].status.ok()) continue;
    absl::Status admitted = AdmitRow(i);
    if (!admitted.ok()) GDN_RETURN_IF_ERROR(Refuse(i, std::move(admitted)));
  }
  if (trace_ != nullptr) trace_->admitted = TraceNow();
  return RefuseFailedDevices();
}

absl::Status StepRows::RefuseFailedDevices() {
  if (parts_.engines.size() == 1) return absl::OkStatus();  // the engine refuses the call
  for (const JobRows& rows : jobs_) {
    const absl::Status device = parts_.engines.at(rows.device).device_status();
    if (device.ok()) continue;
    for (const size_t row : rows.rows) GDN_RETURN_IF_ERROR(Refuse(row, device));
  }
  std::erase_if(jobs_, [this](const JobRows& rows) { return !parts_.engines.at(rows.device).device_status().ok(); });
  return absl::OkStatus();
}

absl::Status StepRows::Submit() {
  if (jobs_.empty()) return absl::OkStatus();
  jobs_.front().job->trace = trace_;  // only one job may write to the trace
  std::vector<Engines::Part> jobs;
  for (const JobRows& rows : jobs_) {
    rows.job->done = &open;
    jobs.push_back({.device = rows.device, .job = rows.job});
  }
  const auto count = static_cast<int>(jobs_.size());
  open.Begin(count);
  // A step may run here only on the thread that began the call, which is gRPC's or the poller of rings. Other threads,
  // which bring sessions, must not be kept from their work.
  const auto where = data_.may_run_here && std::this_thread::get_id() == starter_ ? Batcher::Where::kHereIfShort
                                                                                  : Batcher::Where::kEngineThread;
  absl::Status status = parts_.engines.Submit(std::move(jobs), where);
  if (!status.ok()) open.Withdraw(count);
  return status;
}

void StepRows::CancelJobs() {
  for (const JobRows& rows : jobs_) rows.job->Cancel();
}

void StepRows::NoteComputeTime(int64_t us) {
  int64_t seen = compute_time_us_.load();
  while (seen < us && !compute_time_us_.compare_exchange_weak(seen, us)) {
  }
}

absl::Status StepRows::Finish() {
  for (size_t i = 0; i < joined_.size(); ++i) {
    if (joined_[i].ended == nullptr) continue;
    const absl::StatusOr<StepReplyPtr>& reply = joined_[i].reply;
    rows_[i].status = reply.ok() ? CopyReply(i, **reply) : reply.status();
  }
  for (const JobRows& rows : jobs_) {
    for (size_t i = 0; i < rows.rows.size(); ++i) {
      CallRow& row = rows_[rows.rows[i]];
      row.status = rows.job->rows[i].status;
      row.token_count = rows.job->rows[i].token_count;
    }
    NoteComputeTime(rows.job->compute_time_us);
  }
  CheckStillOurs();
  for (size_t i = 0; metered_ != nullptr && i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) taken_tokens_ -= input_.rows[i].tokens;
  }
  return Outcome();
}

// ---- The reply

int64_t StepRows::TokenCount(const CallRow& row) const {
  if (row.status.ok()) return row.token_count;
  if (row.session == nullptr) return 0;
  const auto info = row.session->LayerAt(input_.layer);
  return info.ok() ? info->progress.token_count : 0;
}

int64_t StepRows::DurableTokenCount(const CallRow& row) const {
  if (row.session == nullptr) return 0;
  const auto info = row.session->LayerAt(input_.layer);
  return info.ok() ? info->durable_token_count : 0;
}

int64_t StepRows::SnapshotLossMark() const {
  for (const CallRow& row : rows_) {
    if (row.session != nullptr) return row.session->snapshot_loss_mark();  // calls find only their caller's sessions
  }
  return parts_.environment.snapshots().MarkOf(principal_);
}

void StepRows::FinishOutput(v1::Tensor& output) {
  ReplyOutput& out = data_.out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    const absl::Span<char> failed = rows_[i].status.ok() ? absl::Span<char>() : OutputOf(i);
    std::fill(failed.begin(), failed.end(), '\0');
  }
  if (!shared_.takes_output()) return;
  const std::string_view data(out.bytes > 0 ? output_ : "", out.bytes);
  if (shared_.PutOutput(data, output)) out = {};
}

}  // namespace gdn
