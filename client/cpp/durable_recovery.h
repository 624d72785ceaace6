// What this side knows of a session on a server that may crash, restart or drain, and how the server is brought back to
// it: the part of a DurableSession that recovers.
//
// Thread safety: one thread at a time. Ownership: the Client must outlive it; it keeps copies of inputs.
//
//   auto reply = Send(request, in_flight_->request_id, token_count, backoff);
//   if (SessionHasMoved(reply.status())) GDN_RETURN_IF_ERROR(Recover(reply.status(), backoff));  // and send it again
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "client/cpp/client.h"
#include "client/cpp/kept_steps.h"
#include "client/cpp/retry.h"

namespace gdn {

struct DurableSessionOptions {
  absl::Duration try_timeout = absl::Seconds(30);     // of one try of one call
  absl::Duration overall_timeout = absl::Minutes(5);  // of a call of this class, waiting and replaying included
  absl::Duration first_backoff = absl::Milliseconds(50);
  absl::Duration longest_backoff = absl::Seconds(2);
  int64_t max_kept_bytes = int64_t{256} << 20;  // of inputs; above it the session is checkpointed before the next step
  int64_t checkpoint_every_tokens = 0;          // CheckpointSession whenever a layer has gone on by so many; 0: the
                                                // server's own policy alone
};

// Since the object was made.
struct DurableSessionStats {
  int64_t retries = 0;      // tries beyond the first, of whatever call
  int64_t recoveries = 0;   // times that the server had lost steps, or the whole session
  int64_t recreations = 0;  // of those, the session was made anew
  int64_t replayed_steps = 0;
  int64_t replayed_tokens = 0;
  int64_t last_lost_tokens = 0;  // of the layer that lost most, at the last recovery
  int64_t max_lost_tokens = 0;   // at any recovery
};

class RecoverableSession {
 protected:
  struct Reply {
    std::variant<v1::PrefillResponse, v1::DecodeResponse> message;
    int64_t token_count = 0;
    int64_t durable_token_count = 0;
    Hash128 output;
  };
  struct AcceptCall {
    int32_t accepted_tokens = 0;
  };
  // A call that was sent and not yet answered; kept when overall_timeout ends it.
  struct CallInFlight {
    std::variant<StepRequest, AcceptCall> what;
    Hash128 identity;  // of what the caller asked for
    std::string request_id;
    bool applied = false;  // the server has done it, as its token counts tell
  };

  RecoverableSession(Client& client, DurableSessionOptions options);

  const std::string& name() const { return session_.name(); }
  Backoff NewBackoff() const;
  std::string NewRequestId();
  CallOptions TryOptions(const Backoff& backoff) const;

  // One try of a call.
  absl::StatusOr<Reply> Send(StepRequest& request, const std::string& request_id, int64_t token_count,
                             const Backoff& backoff);
  absl::StatusOr<v1::SessionTokenCounts> SendAccept(int32_t accepted_tokens, const std::string& request_id,
                                                    const Backoff& backoff);
  // Waits, and brings the server's session to where this side believes it to be, or to where the call in flight has
  // taken it.
  absl::Status Recover(absl::Status cause, Backoff& backoff);

  // Constant after construction.
  Client& client_;
  const DurableSessionOptions options_;
  const std::string id_prefix_;                     // of request ids: unlike those of any other object
  std::optional<v1::CreateSessionRequest> create_;  // none: attached
  std::map<int32_t, int64_t> initial_counts_;       // of a session that create_ makes

  v1::Session session_;
  std::map<int32_t, LayerSteps> layers_;
  int64_t epoch_ = 0;
  bool needs_replay_ = false;      // the server has lost something and not all of it is back
  std::string numerics_id_;        // "": not known
  bool numerics_changed_ = false;  // then replies of before and after differ
  std::optional<CallInFlight> in_flight_;
  int64_t next_request_ = 0;
  std::map<int32_t, int64_t> checkpointed_counts_;
  DurableSessionStats stats_;

 private:
  absl::Status RecoverOnce(const Backoff& backoff);
  absl::StatusOr<v1::Session> FindOrRecreate(bool* recreated, const Backoff& backoff);
  bool IsWhereExpected(const v1::Session& session) const;
  void NoteLoss(const v1::Session& session, bool recreated);
  absl::Status CompareNumerics(const Backoff& backoff);
  absl::Status DropDrafts(v1::Session* session, const Backoff& backoff);
  absl::Status Replay(const v1::Session& session, const Backoff& backoff);
  absl::Status ReplayLayer(LayerSteps& layer, int64_t token_count, const Backoff& backoff);
  absl::Status ReplayStep(KeptStep& step, const Backoff& backoff);
  bool InFlightIsApplied(const LayerSteps& layer, int64_t token_count) const;
};

}  // namespace gdn
