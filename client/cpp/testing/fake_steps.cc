// The steps of FakeGdnService.
#include <type_traits>
#include <utility>

#include "base/draft_tree.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "client/cpp/tensor_codec.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "client/cpp/testing/server_error.h"

namespace gdn {
grpc::Status FakeGdnService::Check(const Step& step, const Row& row) {
  const Session* const session = FindSession(row.session);
  if (session == nullptr) return NoSession();
  const Layer* const layer = FindLayer(row.session, step.layer);
  if (layer == nullptr) return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kLayerNotGdn, "no such layer");
  if (row.expected >= 0) log_.checked_calls.insert(step.call);
  if ((options_.traces || row.epoch != 0) && row.epoch != session->epoch) {
    return ServerError(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
  }
  if ((options_.traces || row.expected >= 0) && row.expected != layer->toy.token_count) {
    return ServerError(grpc::StatusCode::ABORTED, reason::kTokenCountMismatch, "another token count");
  }
  if (layer->toy.draft.empty()) return grpc::Status::OK;
  return ServerError(grpc::StatusCode::FAILED_PRECONDITION, reason::kDraftPending, "a draft");
}

FakeGdnService::RowResult FakeGdnService::ApplyRow(const Step& step, const Row& row, const float* x, size_t tokens,
                                                   bool look) {
  RowResult result;
  const size_t values = tokens * kToyHidden;
  const std::string payload =
      StrCat(step.layer, step.prefill, step.draft, std::string(reinterpret_cast<const char*>(x), values * sizeof(*x)));
  if (const Session* const found = FindSession(row.session); found != nullptr && found->rolled_back) {
    result.status = *found->Refusal();
    return result;
  }
  Layer* const layer = FindLayer(row.session, step.layer);
  if (!step.request_id.empty() && layer != nullptr && layer->reply_id == step.request_id) {
    if (payload != layer->reply_payload) {
      result.status = ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kRequestIdReused, "id");
    } else if (layer->reply_dropped) {
      result.status = ServerError(grpc::StatusCode::ABORTED, reason::kReplyDropped, "no room for the reply");
    }
    result.output = layer->reply;
    result.state = Describe(sessions_.at(row.session), step.layer, *layer);
    return result;
  }
  result.status = Check(step, row);
  if (!result.status.ok() || look) return result;
  if (step.draft) {
    layer->toy.draft_parents = row.parents;
    layer->toy.Draft(step.layer, x, tokens, options_.traces, result.output);
  } else {
    ToyState moved = layer->toy;
    moved.Advance(step.layer, x, tokens, options_.traces, result.output);
    if (step.prefill) moved.EndPrefill(tokens);
    layer->toy = std::move(moved);
  }
  if (step.call == options_.faulty_call) {
    for (float& y : result.output) y += options_.output_error;
  }
  layer->reply_id = options_.forget_stored_replies ? "" : step.request_id;
  layer->reply_payload = payload;
  layer->reply = result.output;
  layer->reply_dropped = false;
  // As a real reply: durable counts are those of before this step's own checkpoint.
  Session& session = sessions_.at(row.session);
  result.state = Describe(session, step.layer, *layer);
  SaveIfDue(session);
  return result;
}

template <typename Reply>
grpc::Status FakeGdnService::Apply(const Step& step, Reply* reply) {
  const auto input = TensorToFloats(*step.input);
  const std::vector<int64_t> shape(step.input->shape().begin(), step.input->shape().end());
  const size_t rows = step.rows.size();
  if (!input.ok() || shape.empty() || shape.back() != kToyHidden ||
      (!step.prefill && shape[0] != static_cast<int64_t>(rows))) {
    return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the input has another shape");
  }
  if (!step.request_id.empty()) {
    if (static_cast<int64_t>(input->size() * sizeof(float)) > kMaxStoredReplyBytes * static_cast<int64_t>(rows)) {
      return grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "the reply is too large to store");
    }
    log_.identified_calls.insert(step.call);
  }
  const size_t tokens = input->size() / rows / kToyHidden;
  const auto apply = [&](size_t row, bool look) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return ApplyRow(step, step.rows[row], input->data() + row * tokens * kToyHidden, tokens, look);
  };
  for (size_t row = 0; row < rows && !step.partial_ok; ++row) {
    if (const RowResult looked = apply(row, /*look=*/true); !looked.status.ok()) return looked.status;
  }
  std::vector<float> output;
  for (size_t row = 0; row < rows; ++row) {
    RowResult result = apply(row, /*look=*/false);
    result.output.resize(result.status.ok() ? result.output.size() : 0);
    result.output.resize(tokens * kToyHidden);
    output.insert(output.end(), result.output.begin(), result.output.end());
    const int64_t count = result.state.token_count() + (options_.wrong_token_count ? 1 : 0);
    if constexpr (std::is_same_v<Reply, v1::PrefillResponse>) {
      reply->set_token_count(count);
      reply->set_durable_token_count(result.state.durable_token_count());
    } else {
      reply->add_token_counts(count);
      reply->add_durable_token_counts(result.state.durable_token_count());
      if (step.partial_ok && !reply->add_row_statuses()->ParseFromString(result.status.error_details())) {
        return grpc::Status(grpc::StatusCode::INTERNAL, "a status without details");
      }
    }
  }
  *reply->mutable_output() = *MakeTensor(output, shape);
  return grpc::Status::OK;
}

template <typename Reply>
grpc::Status FakeGdnService::RunStep(const Step& step, Reply* reply) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal(step.call)) return *refused;
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kNonFiniteInput)) return *failed;
  if (grpc::Status status = Apply(step, reply); !status.ok()) return status;
  for (const Row& row : step.rows) {
    Session* const session = FindSession(row.session);
    if (session != nullptr && fault == Fault::kDropReply) session->now.DropReplies();
  }
  if (fault == Fault::kOtherBytes) reply->mutable_output()->mutable_data()->front() ^= 1;
  return FailAfter(fault);
}
template grpc::Status FakeGdnService::RunStep(const Step&, v1::PrefillResponse*);
template grpc::Status FakeGdnService::RunStep(const Step&, v1::DecodeResponse*);

grpc::Status FakeGdnService::Accept(const std::string& request_id, const v1::DraftAcceptance& acceptance,
                                    v1::SessionTokenCounts* counts) {
  counts->set_session(acceptance.session());
  Session* const session = FindSession(acceptance.session());
  if (session == nullptr) return NoSession();
  if (session->rolled_back) return *session->Refusal();
  State& state = session->now;
  if (request_id.empty() || request_id != state.accept_id) {
    if (acceptance.session_epoch() != session->epoch) {
      return ServerError(grpc::StatusCode::ABORTED, reason::kEpochMismatch, "another epoch");
    }
    std::vector<int32_t> path(acceptance.path().begin(), acceptance.path().end());
    for (int32_t i = 0; i < acceptance.accepted_tokens(); ++i) path.push_back(i);
    for (const auto& [index, layer] : state.layers) {
      if (layer.toy.draft.empty()) continue;
      if (acceptance.accepted_tokens() > layer.toy.draft_length()) {
        return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kTooManyTokens, "longer than the draft");
      }
      if (!CheckDraftPath(layer.toy.draft_parents, layer.toy.draft_length(), path).ok()) {
        return ServerError(grpc::StatusCode::INVALID_ARGUMENT, reason::kValueOutOfRange, "no path of the draft");
      }
    }
    for (auto& [index, layer] : state.layers) {
      if (layer.toy.draft.empty()) continue;
      std::vector<float> ignored;
      for (const int32_t token : path) {
        layer.toy.Advance(index, &layer.toy.draft[static_cast<size_t>(token) * kToyHidden], 1, options_.traces,
                          ignored);
      }
      layer.toy.draft.clear();
      layer.toy.draft_parents.clear();
    }
    state.accept_id = options_.forget_stored_replies ? "" : request_id;
    SaveIfDue(*session);
  }
  for (const auto& [index, layer] : state.layers) *counts->add_layers() = Describe(*session, index, layer);
  return grpc::Status::OK;
}

grpc::Status FakeGdnService::AcceptTokens(grpc::ServerContext*, const v1::AcceptTokensRequest* request,
                                          v1::AcceptTokensResponse* response) {
  absl::MutexLock lock(&mu_);
  if (const auto refused = TakeRefusal("AcceptTokens")) return *refused;
  const std::optional<Fault> fault = TakeFault();
  if (const auto failed = FailBefore(fault, reason::kInvalidSpec)) return *failed;
  for (const v1::DraftAcceptance& acceptance : request->acceptances()) {
    const grpc::Status status = Accept(request->request_id(), acceptance, response->add_counts());
    if (!status.ok() && !request->partial_ok()) return status;
    if (request->partial_ok()) response->add_row_statuses()->ParseFromString(status.error_details());
  }
  return FailAfter(fault);
}

}  // namespace gdn
