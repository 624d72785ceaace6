// A client of a soak that steps sessions. It hides crashes, lost replies and calls that timed out from its caller, or
// reports that a session is lost.
//
// DurablePlayer uses DurableSession and, for several sessions, DurableBatch. ReferencePlayer uses the plain Client in
// one of three forms (unary, streams, AsyncClient), and recovers in the simplest way: it recreates the session and
// repeats all calls since its start. A ReferencePlayer also steps the sessions on the undisturbed server.
// Thread safety: a Player is for one thread. Ownership: borrows its Client.
//
//   GDN_ASSIGN_OR_RETURN(auto player, MakeDurablePlayer(client, {create}, options));
//   GDN_ASSIGN_OR_RETURN(std::vector<std::string> outputs, player->Step({decode}));
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cpp/client.h"
#include "client/cpp/durable_session.h"
#include "client/cpp/kept_steps.h"
#include "tests/soak/mixed_rows.h"

namespace gdn {

class Player {
 public:
  virtual ~Player() = default;

  // Steps each session once, all in one layer with the same number of tokens. Returns the outputs' bytes.
  virtual absl::StatusOr<std::vector<std::string>> Step(const std::vector<SessionStep>& rows) = 0;
  // Steps each session once, all in one layer, each with its own kind and number of tokens. No other layer may have a
  // draft. Returns the outputs' bytes.
  virtual absl::StatusOr<std::vector<std::string>> StepMixed(const std::vector<MixedRow>& rows) = 0;
  // Accepts the same tokens of each session's draft.
  virtual absl::Status Accept(const DraftChoice& choice) = 0;
  // Returns the tokens that the session's layers have seen, by layer, as of the last replies.
  virtual std::map<int32_t, int64_t> Counts(size_t row) const = 0;

  // These act on the first session.
  virtual absl::StatusOr<std::unique_ptr<Player>> Fork(const std::string& child) = 0;
  virtual absl::StatusOr<std::string> Export() = 0;
  virtual absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id) = 0;
  virtual absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id) = 0;
  // Returns the first snapshot of WatchState.
  virtual absl::StatusOr<std::string> Watch() = 0;
  // False if the server has no room, or the session was recovered from a durable copy (PREFIX_MISMATCH).
  virtual absl::StatusOr<bool> KeepPrefix(const v1::PromptPrefix& prefix) = 0;
  virtual int64_t prefix_tokens() const = 0;  // tokens of the kept prefix that the session began with
  // True if the server has a durable copy of the session, so the client needs to keep only later inputs.
  virtual absl::StatusOr<bool> IsDurable() = 0;

  // Deletes all sessions.
  virtual absl::Status Delete() = 0;
  // Returns the number of times that the server had lost steps.
  virtual int64_t recoveries() const = 0;
};

// Longest time for which a soak repeats a call that times out.
inline constexpr absl::Duration kLongestAnswer = absl::Seconds(60);

absl::StatusOr<std::unique_ptr<Player>> MakeDurablePlayer(Client& client,
                                                          const std::vector<v1::CreateSessionRequest>& create,
                                                          const DurableSessionOptions& options);

enum class CallForm { kUnary, kStream, kAsync };
// Which methods take the rows of StepMixed.
enum class MixedBy { kStep, kOtherMethods };
// Makes a player of one session. `try_timeout`: time after which a call is sent again.
absl::StatusOr<std::unique_ptr<Player>> MakeReferencePlayer(Client& client, const v1::CreateSessionRequest& create,
                                                            CallForm form, MixedBy mixed, absl::Duration try_timeout);

}  // namespace gdn
