// A step call's way from pinned rows to the engines and back: rows are admitted, each goes into the job of the device
// that has its state, and the jobs are submitted together.

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "server/rpc/step_call.h"
#include "server/session/foreign_state.h"

namespace gdn {

void StepCall::Cancel() {
  absl::MutexLock lock(&mu_);
  cancelled_ = true;
  for (const Part& part : parts_) part.job->Cancel();
}

void StepCall::NoteComputeTime(int64_t us) {
  int64_t seen = compute_time_us_.load();
  while (seen < us && !compute_time_us_.compare_exchange_weak(seen, us)) {
  }
}

absl::Status StepCall::CopyReply(size_t index, const StoredReply& reply) {
  const size_t token_bytes = static_cast<size_t>(input_.output_features) * DTypeSize(input_.output_dtype);
  const size_t bytes = static_cast<size_t>(input_.lengths[index]) * token_bytes;
  if (reply.output.size() != bytes) {
    return ReplyDoesNotFit(rows_[index].session->id(), input_.layer, reply, static_cast<int64_t>(bytes));
  }
  if (bytes > 0) std::memcpy(output_ + index * row_stride_, reply.output.data(), bytes);  // MakeRoom wrote what follows
  rows_[index].token_count = reply.token_count;
  NoteComputeTime(reply.compute_time_us);
  return absl::OkStatus();
}

StepJobPtr StepCall::MakeJob(int32_t device) const {
  auto job = std::make_shared<StepJob>();
  job->prefill = prefill_;
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
  job->deadline = limit_.deadline;
  job->page_locked = data_.in.bytes() != nullptr;
  if (const SessionSpec& spec = *Spec(); !spec.model.empty()) {
    const auto& layers = context_.models.at(spec.model).LayersOn(device);
    // Admission has the better error for a layer that is not there.
    if (const auto it = layers.find(input_.layer); it != layers.end()) job->weights = &it->second;
  }
  job->rows.reserve(pinned_rows_.size());
  return job;
}

StepCall::Part& StepCall::PartOn(int32_t device, std::vector<Part>& parts) const {
  const auto it = std::ranges::find(parts, device, &Part::device);
  if (it != parts.end()) return *it;
  return parts.emplace_back(Part{.device = device, .job = MakeJob(device), .rows = {}});
}

absl::Status StepCall::AdmitRow(size_t index, std::vector<Part>& parts) {
  Row& row = rows_[index];
  const auto row_number = static_cast<int64_t>(index);
  StepRequest request{.layer = input_.layer,
                      .kind = input_.kind,
                      .request_id = input_.request_id,
                      .payload = {},
                      .tokens = input_.lengths[index],
                      .epoch = row.epoch,
                      .expected_token_count = row.expected_token_count};
  if (!request.request_id.empty()) {
    request.payload = HashRow(input_, row_number);
  }
  waiting_.fetch_add(1);  // for the callback, which may come before Admit returns
  StepReplyCallback on_joined;
  if (!request.request_id.empty()) {
    on_joined = [self = shared_from_this(), index](absl::StatusOr<StepReplyPtr> reply) {
      self->rows_[index].status = reply.ok() ? self->CopyReply(index, **reply) : reply.status();
      self->Release();
    };
  }
  absl::StatusOr<Admission> admission = row.session->Admit(std::move(row.pin), request, std::move(on_joined));
  if (admission.ok() && admission->joined) {
    if (trace_ != nullptr) trace_->waits_for_another = true;
    return absl::OkStatus();
  }
  waiting_.fetch_sub(1);
  GDN_RETURN_IF_ERROR(admission.status());
  if (admission->stored != nullptr) return CopyReply(index, *admission->stored);
  Part& part = PartOn(admission->lease.pool()->device(), parts);
  StepRow& step = part.job->rows.emplace_back();
  step.lease = std::move(admission->lease);
  step.tokens = input_.lengths[index];
  step.parents = input_.RowParents(row_number);
  part.job->tree |= !step.parents.empty();
  for (size_t f = 0; f < input_.fields.size(); ++f) step.inputs[f] = input_.RowData(input_.fields[f], row_number);
  step.output = output_ + index * row_stride_;
  step.keep_reply = !request.request_id.empty();
  part.rows.push_back(index);
  return absl::OkStatus();
}

absl::Status StepCall::RefuseFailedDevices(std::vector<Part>& parts) {
  if (context_.engines.size() == 1) return absl::OkStatus();  // the engine says it, of the call
  for (const Part& part : parts) {
    const absl::Status device = context_.engines.at(part.device).device_status();
    if (device.ok()) continue;
    for (const size_t row : part.rows) {
      if (!partial_ok_) return RowError(row, device);
      rows_[row].status = device;
    }
  }
  std::erase_if(parts, [this](const Part& part) { return !context_.engines.at(part.device).device_status().ok(); });
  return absl::OkStatus();
}

absl::Status StepCall::Proceed() {
  std::vector<Part> parts;
  for (const size_t i : pinned_rows_) {
    if (!rows_[i].status.ok()) continue;
    const absl::Status admitted = AdmitRow(i, parts);
    if (admitted.ok()) continue;  // a joined row's status is now the other call's to write
    if (!partial_ok_) return RowError(i, admitted);
    rows_[i].status = admitted;
  }
  if (trace_ != nullptr) trace_->admitted = TraceNow();
  GDN_RETURN_IF_ERROR(RefuseFailedDevices(parts));
  if (parts.empty()) return absl::OkStatus();
  parts.front().job->trace = trace_;  // one at a time writes to it
  return Submit(parts);
}

absl::Status StepCall::Submit(const std::vector<Part>& parts) {
  std::vector<Engines::Part> jobs;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].job->done = [self = shared_from_this(), i] { self->PartDone(i); };
    jobs.push_back({.device = parts[i].device, .job = parts[i].job});
  }
  {
    absl::MutexLock lock(&mu_);
    parts_ = parts;
    for (const Part& part : parts_) {
      if (cancelled_) part.job->Cancel();
    }
  }
  waiting_.fetch_add(static_cast<int>(parts.size()));
  // Not on the residency thread, which others wait for.
  const auto where =
      std::this_thread::get_id() == starter_ ? Batcher::Where::kHereIfShort : Batcher::Where::kEngineThread;
  const absl::Status status = context_.engines.Submit(std::move(jobs), where);
  if (status.ok()) return status;
  waiting_.fetch_sub(static_cast<int>(parts.size()));
  for (const Part& part : parts) part.job->done = nullptr;  // breaks the cycle; their leases die with them
  absl::MutexLock lock(&mu_);
  parts_.clear();
  return status;
}

void StepCall::PartDone(size_t index) {
  Part part;
  {
    absl::MutexLock lock(&mu_);
    part.job = parts_[index].job;  // it may still be cancelled, in vain
    part.rows.swap(parts_[index].rows);
  }
  for (size_t i = 0; i < part.rows.size(); ++i) {
    Row& row = rows_[part.rows[i]];
    row.status = part.job->rows[i].status;
    row.token_count = part.job->rows[i].token_count;
  }
  NoteComputeTime(part.job->compute_time_us);
  Release();
}

}  // namespace gdn
