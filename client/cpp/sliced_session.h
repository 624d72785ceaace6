// One session whose value heads are spread over several servers (gdn_server --heads), which compute their parts of
// every layer at the same time.
//
// Each server has a session of its own with the states of its heads. A step goes to all of them at once and their
// partial outputs are added up in the order of the heads, in double, so that a sum's bits do not depend on who answers
// first. Parts are DurableSessions: each takes a step exactly once, and is brought back where its server has crashed.
// Where some servers have taken a step and others could not be reached, the same call again goes to the others alone,
// and no other call is let in between: the parts never part for good.
//
// Thread safety: one thread at a time. Ownership: the Clients must outlive it; a step keeps what has been answered
// until all have. While it is used nobody else may move its sessions.
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
  // Makes a session on each server, under one id. The servers' heads, in any order, have to be all of
  // request.model()'s, each once, of one checkpoint: FAILED_PRECONDITION (STATE_MISMATCH) naming what is missing, there
  // twice or different, and no session is made. A server of the whole model may be the only one. INVALID_ARGUMENT
  // (INVALID_SPEC) for an operator and for initial_states, which no slice takes whole. Other errors of
  // DurableSession::Create; sessions that were made before one is met with are deleted.
  static absl::StatusOr<std::unique_ptr<SlicedSession>> Create(absl::Span<Client* const> servers,
                                                               v1::CreateSessionRequest request,
                                                               const DurableSessionOptions& options = {});
  SlicedSession(const SlicedSession&) = delete;
  SlicedSession& operator=(const SlicedSession&) = delete;

  // One step of hidden states, as DurableSession's; the output is the whole layer's, F32 or as output_dtype says, which
  // only the sum is rounded to. compute_time_us is the longest of the servers'. INVALID_ARGUMENT (INPUT_MISSING) for
  // other kinds of input, which slices do not share: their parts take them. FAILED_PRECONDITION where the call before
  // was taken by some servers alone: repeat it. Other errors are those of one server, and name its heads; where others
  // may have taken the step, repeat it too.
  absl::StatusOr<v1::PrefillResponse> Prefill(v1::PrefillRequest request);
  absl::StatusOr<v1::DecodeResponse> Decode(v1::DecodeRequest request);
  absl::StatusOr<v1::SessionTokenCounts> AcceptTokens(int32_t accepted_tokens);

  // On every server; the first error, after all have been tried.
  absl::Status Checkpoint(const std::string& checkpoint_id = "");
  absl::Status Delete();

  const std::string& name() const { return parts_.front().session->name(); }  // on every server
  int64_t token_count(int32_t layer) const;                                   // -1: no such layer
  // The servers, by their heads.
  int size() const { return static_cast<int>(parts_.size()); }
  const v1::HeadSlice& heads(int part) const { return parts_[static_cast<size_t>(part)].heads; }
  DurableSession& part(int part) { return *parts_[static_cast<size_t>(part)].session; }

 private:
  struct Part {
    v1::HeadSlice heads;
    std::unique_ptr<DurableSession> session;
  };
  using PartReply = std::variant<v1::PrefillResponse, v1::DecodeResponse, v1::SessionTokenCounts>;
  // A call that not all servers have answered well.
  struct Unfinished {
    Hash128 identity;
    std::vector<std::optional<PartReply>> replies;  // of each part
  };

  explicit SlicedSession(std::vector<Part> parts) : parts_(std::move(parts)) {}

  absl::Status Named(int part, const absl::Status& status) const;
  // `call` of every part that has not answered it yet, at the same time. The replies of all, in order.
  absl::StatusOr<std::vector<PartReply>> Together(
      const Hash128& identity, const std::function<absl::StatusOr<PartReply>(DurableSession& part)>& call);
  absl::Status OnAll(const std::function<absl::Status(DurableSession& part)>& call);

  std::vector<Part> parts_;  // by heads
  std::optional<Unfinished> unfinished_;
};

}  // namespace gdn
