#include "server/rpc/step_call.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/calls.h"
#include "server/rpc/rpc_status.h"
#include "server/session/session_errors.h"
#include "server/validation/tensor.h"

namespace gdn {

absl::Status StepCall::RowError(size_t index, const absl::Status& status) const {
  const std::string_view name = rows_[index].name;
  if (status.ok()) return status;
  return WithMetadata(prefill_ ? status : WithPrefix(status, StrCat("row ", index, " (", name, ")")), "session", name);
}

void StepCall::Begun(const absl::Status& status) {
  if (!status.ok()) error_ = status;  // nobody else has the call then
  Release();
}

void StepCall::WhenHere(const Caller& caller, std::vector<WantedSession> wanted,
                        std::function<absl::Status(const Caller&)> go_on) {
  if (context_.fleet == nullptr) return Begun(go_on(caller));
  BringSessions(
      context_, caller, std::move(wanted),
      [self = shared_from_this(), go_on = std::move(go_on)](const Caller& brought) { self->Begun(go_on(brought)); });
}

absl::Status StepCall::FindRows(const Caller& caller) {
  if (trace_ != nullptr) {
    trace_->session = std::string(rows_.front().name);
    trace_->rows = static_cast<int32_t>(rows_.size());
  }
  absl::flat_hash_set<absl::string_view> names;
  names.reserve(rows_.size());
  for (size_t i = 0; i < rows_.size(); ++i) {
    Row& row = rows_[i];
    if (!names.insert({row.name.data(), row.name.size()}).second) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kDuplicateSession,
                       StrCat("row ", i, " names ", row.name, " a second time; steps of one session are serial"),
                       {{"session", std::string(row.name)}});
    }
    auto session = FindSession(context_, caller, row.name);
    row.status = session.status();
    if (session.ok()) row.session = *std::move(session);
    if (!row.status.ok() && !partial_ok_) return RowError(i, row.status);
  }
  return absl::OkStatus();
}

const SessionSpec* StepCall::Spec() const {
  for (const Row& row : rows_) {
    if (row.session != nullptr) return &row.session->spec();
  }
  return nullptr;
}

absl::Status StepCall::CheckSameSpec() const {
  const SessionSpec* spec = Spec();
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].session == nullptr) continue;
    const SessionSpec& other = rows_[i].session->spec();
    if (other.model == spec->model && other.dims == spec->dims) continue;
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kMixedSessions,
                     StrCat("row ", i, " (", rows_[i].name, ") is of ",
                            other.model.empty() ? LayerDimsToString(other.dims) : other.model, ", row 0's is ",
                            spec->model.empty() ? LayerDimsToString(spec->dims) : spec->model,
                            "; one call takes sessions of one model or one operator spec"),
                     {{"session", std::string(rows_[i].name)}});
  }
  return absl::OkStatus();
}

int64_t StepCall::TokenCount(const Row& row) const {
  if (row.status.ok()) return row.token_count;
  if (row.session == nullptr) return 0;
  const auto info = row.session->LayerAt(input_.layer);
  return info.ok() ? info->progress.token_count : 0;
}

int64_t StepCall::DurableTokenCount(const Row& row) const {
  if (row.session == nullptr) return 0;
  const auto info = row.session->LayerAt(input_.layer);
  return info.ok() ? info->durable_token_count : 0;
}

absl::Status StepCall::LoadShared(const Caller& caller) {
  if (!SharedTensors::UsedBy(input_)) return absl::OkStatus();
  return shared_.Load(context_.shared_regions, caller.principal, data_.in.message_bytes, context_.limits,
                      context_.call_memory, data_.charge, input_);
}

absl::Status StepCall::MakeRoom(v1::Tensor* output) {
  output->set_dtype(ToProto(input_.output_dtype));
  for (const int64_t dim : input_.output_shape) output->add_shape(dim);
  const size_t token_bytes = static_cast<size_t>(input_.output_features) * DTypeSize(input_.output_dtype);
  row_stride_ = static_cast<size_t>(input_.tokens) * token_bytes;
  data_.out.bytes = row_stride_ * rows_.size();
  if (data_.out.bytes == 0) return absl::OkStatus();
  // A reply that is kept has a copy of the rows, which counts as kept once the step has happened.
  const int64_t copies = input_.request_id.empty() ? 1 : 2;
  GDN_RETURN_IF_ERROR(data_.charge.TryGrow(copies * static_cast<int64_t>(data_.out.bytes)));
  GDN_ASSIGN_OR_RETURN(data_.out.block, context_.call_memory.TakeForCall(data_.out.bytes));
  output_ = data_.out.block.chars();
  for (size_t i = 0; i < rows_.size(); ++i) {
    const size_t written = static_cast<size_t>(input_.lengths[i]) * token_bytes;
    std::memset(output_ + i * row_stride_ + written, 0, row_stride_ - written);
  }
  return absl::OkStatus();
}

void StepCall::FinishOutput(v1::Tensor* output) {
  ReplyOutput& out = data_.out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (out.bytes > 0 && !rows_[i].status.ok()) std::memset(output_ + i * row_stride_, 0, row_stride_);
  }
  if (!shared_.takes_output()) return;
  const std::string_view data(out.bytes > 0 ? output_ : "", out.bytes);
  if (shared_.PutOutput(data, *output)) out = {};
}

absl::Status StepCall::TakeTokens(const Caller& caller) {
  if (!context_.ledger.MetersTokens(*caller.account)) return absl::OkStatus();
  int64_t tokens = 0;
  for (size_t i = 0; i < rows_.size(); ++i) tokens += rows_[i].status.ok() ? input_.lengths[i] : 0;
  GDN_RETURN_IF_ERROR(context_.ledger.TakeTokens(caller.account, tokens, context_.rate_clock.Now().ToNanos()));
  metered_ = caller.account;
  taken_tokens_ = tokens;
  return absl::OkStatus();
}

void StepCall::GiveTokensBack() {
  if (metered_ == nullptr) return;
  int64_t used = 0;
  for (size_t i = 0; error_.ok() && i < rows_.size(); ++i) used += rows_[i].status.ok() ? input_.lengths[i] : 0;
  context_.ledger.GiveTokensBack(std::exchange(metered_, nullptr), taken_tokens_ - used);
}

absl::Status StepCall::Run(const Caller& caller, v1::Tensor* output) {
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (!rows_[i].status.ok()) continue;
    rows_[i].status = CheckRowValues(input_, static_cast<int64_t>(i));
    if (!rows_[i].status.ok() && !partial_ok_) return RowError(i, rows_[i].status);
  }
  if (trace_ != nullptr) trace_->tokens = std::accumulate(input_.lengths.begin(), input_.lengths.end(), int64_t{0});
  GDN_RETURN_IF_ERROR(TakeTokens(caller));
  GDN_RETURN_IF_ERROR(MakeRoom(output));
  limit_ = caller.limit;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) pinned_rows_.push_back(i);
  }
  if (pinned_rows_.empty()) return absl::OkStatus();
  waiting_.fetch_add(1);
  Pin(/*first=*/0);
  return absl::OkStatus();
}

void StepCall::Pin(size_t first) {
  for (size_t i = first; context_.checkpointer.bounds_steps() && i < pinned_rows_.size(); ++i) {
    const size_t row = pinned_rows_[i];
    const int64_t tokens = input_.draft ? 0 : input_.lengths[row];  // a draft counts when it is accepted
    const auto again = [self = shared_from_this(), i] { self->Pin(i); };
    if (!context_.checkpointer.WaitForRoom(rows_[row].session, input_.layer, tokens, again)) return;
  }
  std::vector<std::shared_ptr<Session>> sessions;
  sessions.reserve(pinned_rows_.size());
  for (const size_t row : pinned_rows_) sessions.push_back(rows_[row].session);
  context_.residency.Pin(std::move(sessions), limit_,
                         [self = shared_from_this()](Residency::PinResults pins) { self->Pinned(std::move(pins)); });
}

void StepCall::Pinned(Residency::PinResults pins) {
  absl::Status status;
  for (size_t i = 0; i < pins.size(); ++i) {
    Row& row = rows_[pinned_rows_[i]];
    row.status = pins[i].status();
    // Another server's while it was on its way here: the same call finds it there.
    if (context_.fleet != nullptr && ErrorReason(row.status) == reason::kStatesTakenOver) {
      row.status = SessionMoved(row.session->id());
    }
    if (pins[i].ok()) row.pin = *std::move(pins[i]);
    if (!row.status.ok() && !partial_ok_ && status.ok()) status = RowError(pinned_rows_[i], row.status);
  }
  if (status.ok()) status = Proceed();
  if (!status.ok()) error_ = std::move(status);
  Release();
}

void StepCall::CheckStillOurs() {
  if (!context_.environment.shares_sessions()) return;
  // In this order: sessions that were lost are marked before any is relied on again.
  const absl::Status ours = context_.environment.CheckOurs();
  for (Row& row : rows_) {
    if (!row.status.ok() || row.session == nullptr) continue;
    row.status = ours.ok() ? row.session->CheckNotLost() : ours;
  }
}

absl::Status StepCall::FirstError() const {
  if (!error_.ok()) return error_;
  if (partial_ok_) return absl::OkStatus();
  const auto bad = std::ranges::find_if(rows_, [](const Row& row) { return !row.status.ok(); });
  if (bad == rows_.end()) return absl::OkStatus();
  // All were admitted, so those without an error have happened.
  std::vector<size_t> applied;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) applied.push_back(i);
  }
  return WithAppliedRows(RowError(static_cast<size_t>(bad - rows_.begin()), bad->status), applied);
}

void StepCall::Release() {
  if (waiting_.fetch_sub(1) != 1) return;
  CheckStillOurs();
  const absl::Status status = FirstError();
  GiveTokensBack();
  if (status.ok()) finish_(*this);
  // A stream keeps its last call, which must not keep sessions: a deleted one frees its states at once.
  rows_.clear();
  shared_.Clear();
  done_(status);
}

std::shared_ptr<StepCall> StartPrefill(const ServiceContext& context, const Caller& caller,
                                       const v1::PrefillRequest& request, v1::PrefillResponse* response, StepData data,
                                       CallTrace* trace, StepCall::Done done) {
  std::shared_ptr<StepCall> call(new StepCall(context, data, trace, std::move(done)));
  call->prefill_ = true;
  call->finish_ = [response](StepCall& self) {
    self.FinishOutput(response->mutable_output());
    response->set_token_count(self.rows_.front().token_count);
    response->set_durable_token_count(self.DurableTokenCount(self.rows_.front()));
    response->set_compute_time_us(self.compute_time_us_.load());
  };
  const absl::Status form = [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(CheckMessageSize(data.in.message_bytes, context.limits));
    return CheckInputKind(request).status();
  }();
  if (!form.ok()) {
    call->Begun(form);
    return call;
  }
  StepCall* const self = call.get();  // alive in `go_on`
  const auto go_on = [&context, &request, response, &in = data.in, self](const Caller& brought) -> absl::Status {
    StepCall::Row& row = self->rows_.emplace_back();
    row.name = request.session();
    if (request.has_expected_token_count()) row.expected_token_count = request.expected_token_count();
    if (request.has_session_epoch()) row.epoch = request.session_epoch();
    GDN_RETURN_IF_ERROR(self->FindRows(brought));
    GDN_RETURN_IF_ERROR(row.session->LayerIndex(request.layer()).status());
    const SessionSpec& spec = row.session->spec();
    GDN_ASSIGN_OR_RETURN(self->input_,
                         CheckPrefillInput(request, in.bytes(), spec.dims, context.limits, spec.has_partial_sums()));
    GDN_RETURN_IF_ERROR(self->LoadShared(brought));
    return self->Run(brought, response->mutable_output());
  };
  call->WhenHere(caller, WantedIn(context, caller, request), go_on);
  return call;
}

std::shared_ptr<StepCall> StartDecode(const ServiceContext& context, const Caller& caller,
                                      const v1::DecodeRequest& request, v1::DecodeResponse* response, StepData data,
                                      CallTrace* trace, StepCall::Done done) {
  std::shared_ptr<StepCall> call(new StepCall(context, data, trace, std::move(done)));
  call->partial_ok_ = request.partial_ok();
  call->finish_ = [response](StepCall& self) {
    if (response->has_output()) self.FinishOutput(response->mutable_output());
    for (const StepCall::Row& row : self.rows_) {
      response->add_token_counts(self.TokenCount(row));
      response->add_durable_token_counts(self.DurableTokenCount(row));
      if (!self.partial_ok_) continue;
      *response->add_row_statuses() = ToRpcStatus(row.status);
      if (!row.status.ok()) self.context_.stats.CountError(row.status);
    }
    response->set_compute_time_us(self.compute_time_us_.load());
  };
  const absl::Status form = [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(CheckMessageSize(data.in.message_bytes, context.limits));
    GDN_RETURN_IF_ERROR(CheckInputKind(request).status());
    return CheckBatchSize(request.sessions_size(), context.limits);
  }();
  if (!form.ok()) {
    call->Begun(form);
    return call;
  }
  StepCall* const self = call.get();  // alive in `go_on`
  const auto go_on = [&context, &request, response, &in = data.in, self](const Caller& brought) -> absl::Status {
    self->rows_.reserve(static_cast<size_t>(request.sessions_size()));
    for (const std::string& name : request.sessions()) self->rows_.emplace_back().name = name;
    GDN_RETURN_IF_ERROR(self->FindRows(brought));
    if (self->Spec() == nullptr) return absl::OkStatus();  // every row has its own error
    GDN_RETURN_IF_ERROR(self->CheckSameSpec());
    const SessionSpec& spec = *self->Spec();
    GDN_ASSIGN_OR_RETURN(self->input_,
                         CheckDecodeInput(request, in.bytes(), spec.dims, context.limits, spec.has_partial_sums()));
    GDN_RETURN_IF_ERROR(self->LoadShared(brought));
    for (int i = 0; i < request.expected_token_counts_size(); ++i) {
      self->rows_[static_cast<size_t>(i)].expected_token_count = request.expected_token_counts(i);
    }
    for (int i = 0; i < request.session_epochs_size(); ++i) {
      self->rows_[static_cast<size_t>(i)].epoch = request.session_epochs(i);
    }
    return self->Run(brought, response->mutable_output());
  };
  call->WhenHere(caller, WantedIn(context, caller, request), go_on);
  return call;
}

}  // namespace gdn
