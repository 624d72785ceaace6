#include "server/rpc/step_rows.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/calls.h"
#include "server/rpc/rpc_status.h"
#include "server/session/foreign_state.h"
#include "server/session/session_errors.h"
#include "server/validation/tensor.h"

namespace gdn {

StepRows::StepRows(const ServiceContext& context, const StepMessage& message, StepData data, CallTrace* trace)
    : CallRows(context, message.partial_ok(), /*numbered=*/!message.is_prefill()),
      message_(message),
      data_(data),
      trace_(trace) {}

StepRows::~StepRows() {
  if (metered_ != nullptr) context_.ledger.GiveTokensBack(std::move(metered_), taken_tokens_);
}

// ---- Sessions and inputs

absl::Status StepRows::Find(const Caller& caller) {
  std::vector<CallRow> rows = message_.Rows();
  deadline_ = caller.deadline.time();
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
  GDN_ASSIGN_OR_RETURN(input_, message_.CheckInput(data_.in, *spec_, context_.limits));
  if (SharedTensors::UsedBy(input_)) {
    GDN_RETURN_IF_ERROR(shared_.Load(context_.shared_regions, caller.principal, data_.in.message_bytes, context_.limits,
                                     context_.call_memory, data_.charge, input_));
  }
  for (const size_t i : good_) {
    absl::Status values = CheckRowValues(input_, static_cast<int64_t>(i));
    if (!values.ok()) GDN_RETURN_IF_ERROR(Refuse(i, std::move(values)));
    if (!input_.draft) rows_[i].ahead = input_.lengths[i];  // a draft's tokens count when they are accepted
  }
  NoteGood();
  if (trace_ != nullptr) trace_->tokens = std::accumulate(input_.lengths.begin(), input_.lengths.end(), int64_t{0});
  return absl::OkStatus();
}

// ---- What the step needs before it may run

absl::Status StepRows::TakeTokens(const Caller& caller) {
  if (!context_.ledger.MetersTokens(*caller.account)) return absl::OkStatus();
  int64_t tokens = 0;
  for (const size_t i : good_) tokens += input_.lengths[i];
  GDN_RETURN_IF_ERROR(context_.ledger.TakeTokens(caller.account, tokens, context_.rate_clock.Now().ToNanos()));
  metered_ = caller.account;
  taken_tokens_ = tokens;
  return absl::OkStatus();
}

absl::Status StepRows::TakeOutput() {
  v1::Tensor& output = message_.output();
  output.set_dtype(ToProto(input_.output_dtype));
  for (const int64_t dim : input_.output_shape) output.add_shape(dim);
  const size_t token_bytes = static_cast<size_t>(input_.output_features) * DTypeSize(input_.output_dtype);
  row_stride_ = static_cast<size_t>(input_.tokens) * token_bytes;
  data_.out.bytes = row_stride_ * rows_.size();
  if (data_.out.bytes == 0) return absl::OkStatus();
  // A stored reply needs a second copy of the rows. After the step that copy is charged to the pool of stored replies.
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

// ---- From pinned rows to the engines and back

absl::Status StepRows::CopyReply(size_t index, const StoredReply& reply) {
  const size_t token_bytes = static_cast<size_t>(input_.output_features) * DTypeSize(input_.output_dtype);
  const size_t bytes = static_cast<size_t>(input_.lengths[index]) * token_bytes;
  if (reply.output.size() != bytes) {
    return ReplyDoesNotFit(rows_[index].session->id(), input_.layer, reply, static_cast<int64_t>(bytes));
  }
  // TakeOutput has zeroed the padding behind it.
  if (bytes > 0) std::memcpy(output_ + index * row_stride_, reply.output.data(), bytes);
  rows_[index].token_count = reply.token_count;
  NoteComputeTime(reply.compute_time_us);
  return absl::OkStatus();
}

StepJobPtr StepRows::MakeJob(int32_t device) const {
  auto job = std::make_shared<StepJob>();
  job->prefill = message_.is_prefill();
  job->kind = input_.kind;
  job->draft = input_.draft;
  job->field_count = static_cast<int>(input_.fields.size());
  for (size_t f = 0; f < input_.fields.size(); ++f) {
    job->fields[f] = {.dtype = input_.fields[f].view.dtype, .features = input_.fields[f].features};
  }
  job->scale = input_.scale;
  job->use_qk_l2norm = input_.use_qk_l2norm;
  job->max_beta = input_.max_beta;
  job->output_dtype = input_.output_dtype;
  job->output_features = input_.output_features;
  job->deadline = deadline_;
  job->page_locked = data_.in.bytes() != nullptr;
  if (!spec_->model.empty()) {
    const auto& layers = context_.models.at(spec_->model).LayersOn(device);
    // If the layer does not exist, Admit returns the better error.
    if (const auto it = layers.find(input_.layer); it != layers.end()) job->weights = &it->second;
  }
  job->rows.reserve(good_.size());
  return job;
}

StepRows::DeviceRows& StepRows::RowsOn(int32_t device) {
  const auto it = std::ranges::find(devices_, device, &DeviceRows::device);
  if (it != devices_.end()) return *it;
  return devices_.emplace_back(DeviceRows{.device = device, .job = MakeJob(device), .rows = {}});
}

absl::Status StepRows::AdmitRow(size_t index) {
  CallRow& row = rows_[index];
  const auto row_number = static_cast<int64_t>(index);
  StepRequest request{.layer = input_.layer,
                      .kind = input_.kind,
                      .request_id = input_.request_id,
                      .payload = {},
                      .tokens = input_.lengths[index],
                      .epoch = row.epoch,
                      .expected_token_count = row.expected_token_count};
  if (!request.request_id.empty()) request.payload = HashRow(input_, row_number);
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
  DeviceRows& on_device = RowsOn(admission->lease.pool()->device());
  StepRow& step = on_device.job->rows.emplace_back();
  step.lease = std::move(admission->lease);
  step.tokens = input_.lengths[index];
  step.parents = input_.RowParents(row_number);
  on_device.job->tree |= !step.parents.empty();
  for (size_t f = 0; f < input_.fields.size(); ++f) step.inputs[f] = input_.RowData(input_.fields[f], row_number);
  step.output = output_ + index * row_stride_;
  step.keep_reply = !request.request_id.empty();
  on_device.rows.push_back(index);
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
  if (context_.engines.size() == 1) return absl::OkStatus();  // the engine refuses the call
  for (const DeviceRows& on_device : devices_) {
    const absl::Status device = context_.engines.at(on_device.device).device_status();
    if (device.ok()) continue;
    for (const size_t row : on_device.rows) GDN_RETURN_IF_ERROR(Refuse(row, device));
  }
  std::erase_if(devices_, [this](const DeviceRows& on_device) {
    return !context_.engines.at(on_device.device).device_status().ok();
  });
  return absl::OkStatus();
}

absl::Status StepRows::Submit() {
  if (devices_.empty()) return absl::OkStatus();
  devices_.front().job->trace = trace_;  // only one job may write to the trace
  std::vector<Engines::Part> jobs;
  for (const DeviceRows& on_device : devices_) {
    on_device.job->done = &open;
    jobs.push_back({.device = on_device.device, .job = on_device.job});
  }
  const auto count = static_cast<int>(devices_.size());
  open.Begin(count);
  // A step may run here only on the thread that began the call, which is gRPC's. Other threads, which bring sessions,
  // must not be kept from their work.
  const auto where =
      std::this_thread::get_id() == starter_ ? Batcher::Where::kHereIfShort : Batcher::Where::kEngineThread;
  absl::Status status = context_.engines.Submit(std::move(jobs), where);
  if (!status.ok()) open.Withdraw(count);
  return status;
}

void StepRows::CancelJobs() {
  for (const DeviceRows& on_device : devices_) on_device.job->Cancel();
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
  for (const DeviceRows& on_device : devices_) {
    for (size_t i = 0; i < on_device.rows.size(); ++i) {
      CallRow& row = rows_[on_device.rows[i]];
      row.status = on_device.job->rows[i].status;
      row.token_count = on_device.job->rows[i].token_count;
    }
    NoteComputeTime(on_device.job->compute_time_us);
  }
  CheckStillOurs();
  for (size_t i = 0; metered_ != nullptr && i < rows_.size(); ++i) {
    if (rows_[i].status.ok()) taken_tokens_ -= input_.lengths[i];
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

void StepRows::FinishOutput(v1::Tensor& output) {
  ReplyOutput& out = data_.out;
  for (size_t i = 0; i < rows_.size(); ++i) {
    if (out.bytes > 0 && !rows_[i].status.ok()) std::memset(output_ + i * row_stride_, 0, row_stride_);
  }
  if (!shared_.takes_output()) return;
  const std::string_view data(out.bytes > 0 ? output_ : "", out.bytes);
  if (shared_.PutOutput(data, output)) out = {};
}

}  // namespace gdn
