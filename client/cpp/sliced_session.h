// One session whose value heads are spread over several servers (gdn_server --heads). The servers compute their parts
// of every layer at the same time.
//
// Each server has its own session, with the states of its heads. A step goes to all servers at once. Their partial
// outputs are added in double, in the order of the heads, so the bits of the sum do not depend on who answers first.
// The parts are DurableSessions: each applies a step exactly once, and recovers if its server has crashed. If some
// servers have applied a step and others could not be reached, repeat the same call: it goes only to the others. Until
// then every other call is refused, so the servers never drift apart.
//
// Thread safety: one thread at a time. Ownership: the Clients must outlive it. A step keeps replies until all servers
// have answered. While it is in use, nothing else may step its sessions.
//
//   v1::CreateSessionRequest create;
//   create.set_model("models/qwen");  // on every server
//   GDN_ASSIGN_OR_RETURN(auto session, SlicedSession::Create({low.get(), high.get()}, create));
//   GDN_ASSIGN_OR_RETURN(v1::DecodeResponse token, session->Decode(decode));
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/hash.h"
#include "client/cpp/client.h"
#include "client/cpp/durable_session.h"

namespace gdn {

class SlicedSession final {
 public:
  // Makes a session on each server, under one id. In any order, the servers must have all heads of request.model(),
  // each once, of one checkpoint. Otherwise FAILED_PRECONDITION (STATE_MISMATCH) names the heads that are missing,
  // doubled or different, and no session is made. One server of the whole model is allowed too. INVALID_ARGUMENT
  // (INVALID_SPEC) without servers, for an operator and for initial_states, because no slice takes all of it. Other
  // errors as of DurableSession::Create. After an error, the sessions that were already made are deleted.
  static absl::StatusOr<std::unique_ptr<SlicedSession>> Create(absl::Span<Client* const> servers,
                                                               v1::CreateSessionRequest request,
                                                               const DurableSessionOptions& options = {});
  SlicedSession(const SlicedSession&) = delete;
  SlicedSession& operator=(const SlicedSession&) = delete;

  // Applies one step of hidden states, as in DurableSession. The output is that of the whole layer, in F32 or
  // output_dtype; only the sum is rounded to it. compute_time_us is the longest of the servers. INVALID_ARGUMENT
  // (INPUT_MISSING) for other kinds of input, which the parts take. FAILED_PRECONDITION if only some servers have
  // applied the call before this one: repeat that call. Other errors name the heads of the server that failed. If
  // others may have applied the step, repeat the call too.
  absl::StatusOr<v1::PrefillResponse> Prefill(v1::PrefillRequest request);
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest request);
  // Accepts the first tokens of the draft on every server, as DurableSession::AcceptTokens. Errors as in Decode.
  absl::StatusOr<v1::SessionTokenCounts> AcceptTokens(int32_t accepted_tokens);

  // Run DurableSession's Checkpoint and Delete on every server, at the same time. Return the first error in the order
  // of the heads, after all were tried; the other servers may then have done it.
  absl::Status Checkpoint(const std::string& checkpoint_id = "");
  absl::Status Delete();

  const std::string& name() const { return parts_.front().session->name(); }  // the same on every server
  int64_t token_count(int32_t layer) const;  // tokens that the layer has seen; -1: no such layer
  // Number of servers. heads(i) and part(i), 0 <= i < size(), number them in the order of their heads.
  int size() const { return static_cast<int>(parts_.size()); }
  const v1::HeadSlice& heads(int part) const { return parts_[static_cast<size_t>(part)].heads; }
  DurableSession& part(int part) { return *parts_[static_cast<size_t>(part)].session; }

 private:
  struct Part {
    v1::HeadSlice heads;
    std::unique_ptr<DurableSession> session;
  };
  using PartReply = std::variant<v1::PrefillResponse, v1::DecodeResponse, v1::SessionTokenCounts>;
  // A call that not all servers have answered successfully.
  struct Unfinished {
    Hash128 identity;
    std::vector<std::optional<PartReply>> replies;  // one for each part
  };

  explicit SlicedSession(std::vector<Part> parts) : parts_(std::move(parts)) {}

  absl::Status Named(int part, const absl::Status& status) const;
  // Runs `call` on every part that has not answered it yet, at the same time. Returns the replies of all parts, in
  // order, or the first error.
  absl::StatusOr<std::vector<PartReply>> Together(
      const Hash128& identity, const std::function<absl::StatusOr<PartReply>(DurableSession& part)>& call);
  // Runs a step of every part, and adds their outputs.
  template <typename Request, typename Response>
  absl::StatusOr<Response> RunStep(Request request, absl::StatusOr<Response> (DurableSession::*step)(Request));
  absl::Status OnAll(const std::function<absl::Status(DurableSession& part)>& call);

  std::vector<Part> parts_;  // in the order of their heads
  std::optional<Unfinished> unfinished_;
};

}  // namespace gdn
