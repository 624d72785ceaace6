// The steps of FakeGdnService.
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "client/cpp/tensor_codec.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "client/cpp/testing/server_error.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

// Hidden states are all that the toy layer takes.
constexpr LayerDims kToyDims{.hidden_size = kToyHidden};
constexpr StepLimits kToyLimits{.max_stored_reply_bytes = kMaxStoredReplyBytes};

}  // namespace

grpc::Status FakeGdnService::RunPrefill(const std::string& call, const v1::PrefillRequest& request,
                                        v1::PrefillResponse* response) {
  StepCall step{.call = call,
                .input = CheckPrefillInput(request, /*data=*/nullptr, kToyDims),
                .tensor = &request.hidden_states().hidden_states(),
                .one_row = true,
                .rows = {{.session = request.session(), .epoch = EpochOf(request)}}};
  if (request.has_expected_token_count()) step.rows[0].expected = request.expected_token_count();
  v1::DecodeResponse reply;
  if (grpc::Status status = RunStep(step, &reply); !status.ok()) return status;
  response->set_token_count(reply.token_counts(0));
  response->set_durable_token_count(reply.durable_token_counts(0));
  response->set_snapshot_loss_mark(reply.snapshot_loss_mark());
  response->mutable_output()->Swap(reply.mutable_output());
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::RunDecode(const std::string& call, const v1::DecodeRequest& request,
                                       v1::DecodeResponse* response) {
  if (options_.refuse_decode) return grpc::Status(grpc::StatusCode::ABORTED, "busy");
  StepCall step{.call = call,
                .input = CheckDecodeInput(request, /*data=*/nullptr, kToyDims, kToyLimits),
                .tensor = &request.hidden_states().hidden_states(),
                .partial_ok = request.partial_ok()};
  for (int row = 0; row < request.sessions_size(); ++row) {
    Row& added = step.rows.emplace_back(Row{.session = request.sessions(row)});
    if (row < request.session_epochs_size()) added.epoch = request.session_epochs(row);
    if (row < request.expected_token_counts_size()) added.expected = request.expected_token_counts(row);
  }
  return RunStep(step, response);
}

grpc::Status FakeGdnService::RunMixed(const std::string& call, const v1::StepRequest& request,
                                      v1::StepResponse* response) {
  StepCall step{.call = call,
                .input = CheckStepInput(request, /*data=*/nullptr, kToyDims, kToyLimits),
                .tensor = &request.hidden_states().hidden_states(),
                .partial_ok = request.partial_ok()};
  for (const v1::StepRow& row : request.rows()) {
    Row& added = step.rows.emplace_back(Row{.session = row.session(), .epoch = EpochOf(row)});
    if (row.has_expected_token_count()) added.expected = row.expected_token_count();
  }
  return RunStep(step, response);
}

absl::StatusOr<StepAnswer> FakeGdnService::AnswerRow(const StepCall& step, size_t row) {
  const Row& asked = step.rows[row];
  const CheckedInput& input = *step.input;
  GDN_ASSIGN_OR_RETURN(const Session* const session, Find(asked.session));
  // Traces are of any bits.
  if (!options_.traces) GDN_RETURN_IF_ERROR(CheckRowValues(input, input.rows[row]));
  GDN_RETURN_IF_ERROR(session->unusable);
  const auto layer = session->now.layers.find(input.layer);
  if (layer == session->now.layers.end()) {
    std::vector<int32_t> layers;
    for (const auto& [index, other] : session->now.layers) layers.push_back(index);
    return LayerNotGdn(session->id, input.layer, layers);
  }
  if (asked.expected.has_value()) log_.checked_calls.insert(step.call);
  StepRequest request{.layer = input.layer,
                      .kind = input.shape.kind,
                      .request_id = input.request_id,
                      .payload = HashRow(input, input.rows[row]),
                      .tokens = input.rows[row].tokens,
                      .epoch = asked.epoch,
                      .expected_token_count = asked.expected,
                      .accept_before = input.rows[row].accept_before};
  if (options_.traces) {
    request.epoch = request.epoch.value_or(0);
    request.expected_token_count = request.expected_token_count.value_or(-1);
  }
  return AnswerStep(session->Facts(), layer->second.Facts(input.layer), request);
}

FakeGdnService::RowResult FakeGdnService::ApplyRow(const StepCall& step, size_t row, StepAnswer answer,
                                                   const float* x) {
  const CheckedInput& input = *step.input;
  Session& session = sessions_.at(step.rows[row].session);
  Layer& layer = session.now.layers.at(input.layer);
  RowResult result = layer.reply;
  if (answer == StepAnswer::kGo) {
    const auto tokens = static_cast<size_t>(input.rows[row].tokens);
    result.output.clear();
    if (const auto& accepted = input.rows[row].accept_before; accepted.has_value()) {
      AcceptDraft(input.layer, layer, *accepted);
    }
    if (input.rows[row].kind == RowKind::kDraft) {
      const absl::Span<const int32_t> parents = input.rows[row].parents;
      layer.toy.draft_parents.assign(parents.begin(), parents.end());
      layer.toy.Draft(input.layer, x, tokens, options_.traces, result.output);
    } else {
      layer.toy.Advance(input.layer, x, tokens, options_.traces, result.output);
      if (input.rows[row].kind == RowKind::kPrefill) layer.toy.EndPrefill(tokens);
    }
    if (step.call == options_.faulty_call) {
      for (float& y : result.output) y += options_.output_error;
    }
    result.token_count = layer.toy.token_count;
    if (!input.request_id.empty() && !options_.forget_stored_replies) {
      layer.request_id = input.request_id;
      layer.payload = HashRow(input, input.rows[row]);
      layer.reply = result;
      layer.reply_dropped = static_cast<int64_t>(result.output.size() * sizeof(float)) > kMaxStoredReplyBytes;
    }
  }
  // As in a real reply: durable counts are those of before this step's own checkpoint.
  result.durable_token_count = Describe(session, input.layer, layer).durable_token_count();
  if (answer == StepAnswer::kGo) SaveIfDue(session);
  return result;
}

template <typename Response>
absl::Status FakeGdnService::Apply(const StepCall& step, Response* reply) {
  GDN_RETURN_IF_ERROR(step.input.status());
  const CheckedInput& input = *step.input;
  GDN_ASSIGN_OR_RETURN(const std::vector<float> x, TensorToFloats(*step.tensor));
  if (!input.request_id.empty()) log_.identified_calls.insert(step.call);
  const auto row_error = [&](size_t row, const absl::Status& status) {
    const std::string& session = step.rows[row].session;
    return step.one_row ? WithMetadata(status, "session", session) : OfRow(status, row, session);
  };
  std::vector<absl::StatusOr<StepAnswer>> answers;
  for (size_t row = 0; row < step.rows.size(); ++row) {
    answers.push_back(AnswerRow(step, row));
    if (!answers.back().ok() && !step.partial_ok) return row_error(row, answers.back().status());
  }
  std::vector<float> output(static_cast<size_t>(input.tokens) * kToyHidden);
  for (size_t row = 0; row < step.rows.size(); ++row) {
    RowResult result;
    if (answers[row].ok()) {
      const auto first = static_cast<std::ptrdiff_t>(input.rows[row].first) * kToyHidden;
      result = ApplyRow(step, row, *answers[row], x.data() + first);
      std::copy(result.output.begin(), result.output.end(), output.begin() + first);
    } else if (const auto session = Find(step.rows[row].session);
               session.ok() && (*session)->now.layers.contains(input.layer)) {
      const v1::LayerState state = Describe(**session, input.layer, (*session)->now.layers.at(input.layer));
      result.token_count = state.token_count();
      result.durable_token_count = state.durable_token_count();
    }
    reply->add_token_counts(result.token_count + (options_.wrong_token_count ? 1 : 0));
    reply->add_durable_token_counts(result.durable_token_count);
    if (step.partial_ok) *reply->add_row_statuses() = ServerRpcError(row_error(row, answers[row].status()));
  }
  reply->set_snapshot_loss_mark(SnapshotLossMark());
  GDN_ASSIGN_OR_RETURN(*reply->mutable_output(), MakeTensor(output, input.output_shape));
  return absl::OkStatus();
}

template <typename Response>
grpc::Status FakeGdnService::RunStep(const StepCall& step, Response* reply) {
  return Call(step.call, [&](std::optional<Fault> fault) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(Apply(step, reply));
    for (const Row& row : step.rows) {
      const auto session = Find(row.session);
      if (session.ok() && fault == Fault::kDropReply) (*session)->now.DropReplies();
    }
    if (fault == Fault::kOtherBytes) reply->mutable_output()->mutable_data()->front() ^= 1;
    return absl::OkStatus();
  });
}

absl::StatusOr<std::optional<Acceptance>> FakeGdnService::AnswerAcceptance(const std::string& request_id,
                                                                           const v1::DraftAcceptance& asked) {
  GDN_ASSIGN_OR_RETURN(const Session* const session, Find(asked.session()));
  GDN_ASSIGN_OR_RETURN(Acceptance acceptance,
                       ReadAcceptance(asked.accepted_tokens(), asked.path(), kToyLimits.max_draft));
  acceptance.request_id = request_id;
  acceptance.epoch = EpochOf(asked);
  if (options_.traces) acceptance.epoch = acceptance.epoch.value_or(0);
  GDN_RETURN_IF_ERROR(session->unusable);
  GDN_ASSIGN_OR_RETURN(const bool done, WasAccepted(session->Facts(), session->AllLayers(), acceptance));
  return done ? std::nullopt : std::optional(std::move(acceptance));
}

void FakeGdnService::AcceptDraft(int32_t index, Layer& layer, const Acceptance& acceptance) const {
  if (layer.toy.draft.empty()) return;
  std::vector<float> ignored;
  for (const int32_t token : acceptance.tokens()) {
    layer.toy.Advance(index, &layer.toy.draft[static_cast<size_t>(token) * kToyHidden], 1, options_.traces, ignored);
  }
  layer.toy.draft.clear();
  layer.toy.draft_parents.clear();
}

void FakeGdnService::Accept(Session& session, const Acceptance& acceptance) {
  for (auto& [index, layer] : session.now.layers) AcceptDraft(index, layer, acceptance);
  if (!acceptance.request_id.empty() && !options_.forget_stored_replies) session.now.accepted = acceptance;
  SaveIfDue(session);
}

grpc::Status FakeGdnService::AcceptTokens(Context*, const v1::AcceptTokensRequest* request,
                                          v1::AcceptTokensResponse* response) {
  return Call("AcceptTokens", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(CheckBatchSize("acceptances", request->acceptances_size(), kToyLimits));
    GDN_RETURN_IF_ERROR(CheckRequestId(request->request_id()));
    std::vector<absl::StatusOr<std::optional<Acceptance>>> answers;
    for (const v1::DraftAcceptance& asked : request->acceptances()) {
      answers.push_back(AnswerAcceptance(request->request_id(), asked));
      if (answers.back().ok() || request->partial_ok()) continue;
      return OfRow(answers.back().status(), answers.size() - 1, asked.session());
    }
    for (size_t row = 0; row < answers.size(); ++row) {
      v1::SessionTokenCounts* const counts = response->add_counts();
      counts->set_session(request->acceptances(static_cast<int>(row)).session());
      if (request->partial_ok()) {
        *response->add_row_statuses() = ServerRpcError(OfRow(answers[row].status(), row, counts->session()));
      }
      if (!answers[row].ok()) continue;
      Session& session = sessions_.at(counts->session());
      if (answers[row]->has_value()) Accept(session, **answers[row]);
      for (const auto& [index, layer] : session.now.layers) *counts->add_layers() = Describe(session, index, layer);
    }
    return absl::OkStatus();
  });
}

}  // namespace gdn
