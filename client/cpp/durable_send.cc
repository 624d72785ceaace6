// The part of a DurableSession that sends its steps, under request ids of its own.
#include "client/cpp/durable_session.h"

#include <string>
#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

DurableSession::DurableSession(Client& client, DurableSessionOptions options)
    : client_(client), options_(options), id_prefix_(RandomId()) {}

Backoff DurableSession::NewBackoff() const {
  return Backoff({.first = options_.first_backoff,
                  .longest = options_.longest_backoff,
                  .deadline = absl::Now() + options_.overall_timeout});
}

std::string DurableSession::NewRequestId() { return StrCat(id_prefix_, "-", next_request_++); }

const std::string& DurableSession::RequestIdInFlight() {
  if (in_flight_->request_id.empty()) in_flight_->request_id = NewRequestId();
  return in_flight_->request_id;
}

CallOptions DurableSession::TryOptions(const Backoff& backoff) const {
  const absl::Duration left = std::max(backoff.deadline() - absl::Now(), absl::Milliseconds(1));
  return {.timeout = std::min(options_.try_timeout, left), .affinity = session_.affinity()};
}

void DurableSession::AddRowTo(v1::DecodeRequest& message, int64_t token_count) const {
  message.add_sessions(name());
  message.add_session_epochs(epoch_);
  message.add_expected_token_counts(token_count);
}

void DurableSession::AddRowTo(v1::AcceptTokensRequest& message, const DraftChoice& choice) const {
  v1::DraftAcceptance* const acceptance = message.add_acceptances();
  acceptance->set_session(name());
  acceptance->set_accepted_tokens(choice.first_tokens);
  acceptance->mutable_path()->Add(choice.path.begin(), choice.path.end());
  acceptance->set_session_epoch(epoch_);
}

absl::StatusOr<DurableSession::Reply> DurableSession::Send(SessionStep& request, const std::string& request_id,
                                                           int64_t token_count, const Backoff& backoff) {
  Reply reply;
  if (auto* const prefill = std::get_if<v1::PrefillRequest>(&request)) {
    prefill->set_session(name());
    prefill->set_session_epoch(epoch_);
    prefill->set_expected_token_count(token_count);
    prefill->set_request_id(request_id);
    GDN_ASSIGN_OR_RETURN(v1::PrefillResponse response, client_.Prefill(*prefill, TryOptions(backoff)));
    reply.result = {.token_count = response.token_count(),
                    .durable_token_count = response.durable_token_count(),
                    .output = HashBytes(response.output().data())};
    reply.message = std::move(response);
    return reply;
  }
  v1::DecodeRequest& decode = std::get<v1::DecodeRequest>(request);
  decode.clear_sessions();
  decode.clear_session_epochs();
  decode.clear_expected_token_counts();
  AddRowTo(decode, token_count);
  decode.set_partial_ok(false);
  decode.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::DecodeResponse response, client_.Decode(decode, TryOptions(backoff)));
  if (response.token_counts_size() != 1) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kInternal,
        StrCat("a Decode of one session was answered with ", response.token_counts_size(), " token counts"));
  }
  reply.result = {
      .token_count = response.token_counts(0),
      .durable_token_count = response.durable_token_counts_size() == 1 ? response.durable_token_counts(0) : 0,
      .output = HashBytes(response.output().data())};
  reply.message = std::move(response);
  return reply;
}

absl::StatusOr<v1::SessionTokenCounts> DurableSession::SendAccept(const DraftChoice& choice,
                                                                  const std::string& request_id,
                                                                  const Backoff& backoff) {
  v1::AcceptTokensRequest request;
  AddRowTo(request, choice);
  request.set_request_id(request_id);
  GDN_ASSIGN_OR_RETURN(v1::AcceptTokensResponse response, client_.AcceptTokens(request, TryOptions(backoff)));
  if (response.counts_size() != 1) {
    return MakeError(absl::StatusCode::kInternal, reason::kInternal,
                     StrCat("AcceptTokens of one session was answered with ", response.counts_size(), " entries"));
  }
  return std::move(*response.mutable_counts(0));
}

}  // namespace gdn
