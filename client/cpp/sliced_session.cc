#include "client/cpp/sliced_session.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/retry.h"
#include "client/cpp/tensor_codec.h"

namespace gdn {
namespace {

absl::Status Invalid(std::string_view reason, std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, message, {{"field", std::string(field)}});
}

absl::Status Mismatch(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kFailedPrecondition, reason::kStateMismatch, message,
                   {{"field", std::string(field)}});
}

// All heads, spelt out, where the model is no slice.
v1::HeadSlice HeadsOf(const v1::Model& model) {
  if (model.has_heads()) return model.heads();
  v1::HeadSlice all;
  all.set_value_heads(model.dims().value_heads());
  all.set_total_value_heads(model.dims().value_heads());
  return all;
}

int32_t First(const v1::HeadSlice& heads) { return heads.first_value_head(); }
int32_t End(const v1::HeadSlice& heads) { return heads.first_value_head() + heads.value_heads(); }

struct Server {
  Client* client;
  v1::Model model;
  v1::HeadSlice heads;
};

absl::Status CheckAreWhole(const std::vector<Server>& servers) {
  int32_t end = 0;
  for (const Server& server : servers) {
    const v1::Model& first = servers.front().model;
    if (server.model.whole_fingerprint() != first.whole_fingerprint()) {
      return Mismatch("model_fingerprint",
                      StrCat("the servers' ", first.name(), " are different models: ", first.whole_fingerprint(),
                             " and ", server.model.whole_fingerprint()));
    }
    if (First(server.heads) != end) {
      return Mismatch("heads", StrCat("value heads ", std::min(end, First(server.heads)), " to ",
                                      std::max(end, First(server.heads)) - 1, " of ", first.name(), " are on ",
                                      First(server.heads) > end ? "no server" : "two servers",
                                      "; expected each of its ", server.heads.total_value_heads(), " on one"));
    }
    end = End(server.heads);
  }
  if (end == servers.back().heads.total_value_heads()) return absl::OkStatus();
  return Mismatch("heads", StrCat("value heads ", end, " to ", servers.back().heads.total_value_heads() - 1, " of ",
                                  servers.back().model.name(), " are on no server"));
}

// Every server's answer to one call, and when it began the caller waits for all.
void ForAll(size_t count, const std::function<void(size_t)>& call) {
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 1; i < count; ++i) threads.emplace_back(call, i);
  if (count > 0) call(0);
  for (std::thread& thread : threads) thread.join();
}

template <typename Request>
Hash128 IdentityOf(const Request& request) {
  Hasher hasher;
  hasher.UpdateField(request.GetTypeName());
  hasher.UpdateField(request.SerializeAsString());
  return hasher.Finish();
}

// The sum, in double, in the order of `parts`; rounded once.
absl::StatusOr<v1::Tensor> Sum(const std::vector<const v1::Tensor*>& parts, v1::DType dtype) {
  DType out = DType::kF32;
  if (dtype != v1::DTYPE_UNSPECIFIED) {
    GDN_ASSIGN_OR_RETURN(out, FromProtoDType(dtype));
  }
  const std::vector<int64_t> shape(parts[0]->shape().begin(), parts[0]->shape().end());
  std::vector<double> sum;
  for (const v1::Tensor* part : parts) {
    GDN_ASSIGN_OR_RETURN(const std::vector<float> values, TensorToFloats(*part, shape));
    sum.resize(values.size());
    for (size_t i = 0; i < values.size(); ++i) sum[i] += static_cast<double>(values[i]);
  }
  std::vector<float> rounded(sum.size());
  std::transform(sum.begin(), sum.end(), rounded.begin(), [](double value) { return static_cast<float>(value); });
  return MakeTensor(rounded, shape, out);
}

// The replies' common part: the sum of their outputs, and the longest compute time.
template <typename Response, typename Replies>
absl::StatusOr<Response> SumReplies(Replies& replies, v1::DType dtype) {
  std::vector<const v1::Tensor*> outputs;
  int64_t compute_time_us = 0;
  for (const auto& part : replies) {
    const Response& reply = std::get<Response>(part);
    outputs.push_back(&reply.output());
    compute_time_us = std::max<int64_t>(compute_time_us, reply.compute_time_us());
  }
  GDN_ASSIGN_OR_RETURN(v1::Tensor sum, Sum(outputs, dtype));
  Response response = std::get<Response>(std::move(replies.front()));
  *response.mutable_output() = std::move(sum);
  response.set_compute_time_us(compute_time_us);
  return response;
}

}  // namespace

absl::StatusOr<std::unique_ptr<SlicedSession>> SlicedSession::Create(absl::Span<Client* const> servers,
                                                                     v1::CreateSessionRequest request,
                                                                     const DurableSessionOptions& options) {
  if (servers.empty()) return Invalid(reason::kInvalidSpec, "servers", "there are no servers; expected one or more");
  if (request.model().empty() || request.initial_states_size() > 0) {
    return Invalid(reason::kInvalidSpec, request.model().empty() ? "model" : "initial_states",
                   "a sliced session is of a model, and begins at zero");
  }
  if (request.session_id().empty()) request.set_session_id(RandomId());
  std::vector<Server> found;
  for (Client* client : servers) {
    GDN_ASSIGN_OR_RETURN(v1::Model model, client->GetModel(request.model()));
    v1::HeadSlice heads = HeadsOf(model);
    found.push_back({.client = client, .model = std::move(model), .heads = std::move(heads)});
  }
  std::sort(found.begin(), found.end(),
            [](const Server& a, const Server& b) { return First(a.heads) < First(b.heads); });
  GDN_RETURN_IF_ERROR(CheckAreWhole(found));
  std::vector<Part> parts;
  for (const Server& server : found) {
    auto session = DurableSession::Create(*server.client, request, options);
    if (!session.ok()) {
      for (Part& part : parts) part.session->Delete().IgnoreError();
      return session.status();
    }
    parts.push_back({.heads = server.heads, .session = *std::move(session)});
  }
  return std::unique_ptr<SlicedSession>(new SlicedSession(std::move(parts)));
}

absl::Status SlicedSession::Named(int part, const absl::Status& status) const {
  if (size() == 1) return status;
  const v1::HeadSlice& of = heads(part);
  return WithPrefix(status, StrCat("the server of heads ", First(of), "-", End(of) - 1, "/", of.total_value_heads()));
}

absl::StatusOr<std::vector<SlicedSession::PartReply>> SlicedSession::Together(
    const Hash128& identity, const std::function<absl::StatusOr<PartReply>(DurableSession& part)>& call) {
  if (unfinished_.has_value() && unfinished_->identity != identity) {
    return absl::FailedPreconditionError(
        AbslView(StrCat("the call before on ", name(),
                        " may have been taken by some of its servers alone; repeat it before another one")));
  }
  if (!unfinished_.has_value()) unfinished_ = {.identity = identity, .replies = {}};
  std::vector<std::optional<PartReply>>& replies = unfinished_->replies;
  replies.resize(parts_.size());
  std::vector<absl::Status> statuses(parts_.size());
  ForAll(parts_.size(), [&](size_t i) {
    if (replies[i].has_value()) return;
    absl::StatusOr<PartReply> reply = call(*parts_[i].session);
    statuses[i] = reply.status();
    if (reply.ok()) replies[i] = *std::move(reply);
  });
  const auto failed = std::find_if(statuses.begin(), statuses.end(), [](const absl::Status& s) { return !s.ok(); });
  if (failed == statuses.end()) {
    std::vector<PartReply> answered;
    for (std::optional<PartReply>& reply : replies) answered.push_back(*std::move(reply));
    unfinished_.reset();
    return answered;
  }
  // Refused by all, it has moved nothing anywhere.
  const bool refused =
      std::none_of(replies.begin(), replies.end(), [](const auto& reply) { return reply.has_value(); }) &&
      std::none_of(statuses.begin(), statuses.end(), WorthAnotherTry);
  if (refused) unfinished_.reset();
  return Named(static_cast<int>(failed - statuses.begin()), *failed);
}

absl::Status SlicedSession::OnAll(const std::function<absl::Status(DurableSession& part)>& call) {
  std::vector<absl::Status> statuses(parts_.size());
  ForAll(parts_.size(), [&](size_t i) { statuses[i] = call(*parts_[i].session); });
  for (size_t i = 0; i < statuses.size(); ++i) {
    if (!statuses[i].ok()) return Named(static_cast<int>(i), statuses[i]);
  }
  return absl::OkStatus();
}

template <typename Request, typename Response>
absl::StatusOr<Response> SlicedSession::RunStep(Request request,
                                                absl::StatusOr<Response> (DurableSession::*step)(Request)) {
  if (!request.has_hidden_states()) {
    return Invalid(
        reason::kInputMissing, "input",
        "a sliced session takes hidden_states; other inputs go by head, to the part whose heads they are of");
  }
  const v1::DType dtype = request.output_dtype();
  request.set_output_dtype(v1::DTYPE_F32);
  GDN_ASSIGN_OR_RETURN(std::vector<PartReply> replies,
                       Together(IdentityOf(request), [&](DurableSession& part) -> absl::StatusOr<PartReply> {
                         return (part.*step)(request);
                       }));
  return SumReplies<Response>(replies, dtype);
}

absl::StatusOr<v1::PrefillResponse> SlicedSession::Prefill(v1::PrefillRequest request) {
  return RunStep(std::move(request), &DurableSession::Prefill);
}

absl::StatusOr<v1::DecodeResponse> SlicedSession::Decode(v1::DecodeRequest request) {
  return RunStep(std::move(request), &DurableSession::Decode);
}

absl::StatusOr<v1::SessionTokenCounts> SlicedSession::AcceptTokens(int32_t accepted_tokens) {
  Hasher identity;
  identity.UpdateField("accept");
  identity.UpdateInt(accepted_tokens);
  GDN_ASSIGN_OR_RETURN(std::vector<PartReply> replies,
                       Together(identity.Finish(), [&](DurableSession& part) -> absl::StatusOr<PartReply> {
                         return part.AcceptTokens(accepted_tokens);
                       }));
  return std::get<v1::SessionTokenCounts>(std::move(replies.front()));
}

absl::Status SlicedSession::Checkpoint(const std::string& checkpoint_id) {
  return OnAll([&](DurableSession& part) { return part.Checkpoint(checkpoint_id).status(); });
}

absl::Status SlicedSession::Delete() {
  return OnAll([](DurableSession& part) { return part.Delete(); });
}

int64_t SlicedSession::token_count(int32_t layer) const { return parts_.front().session->token_count(layer); }

}  // namespace gdn
