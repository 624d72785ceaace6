// A form of client that a soak steps sessions with: it hides crashes, lost replies and given-up calls from its caller,
// or says that a session is lost.
//
// DurablePlayer uses DurableSession and, for several sessions, DurableBatch. ReferencePlayer uses the plain Client, in
// one of three forms (unary, streams, AsyncClient), and recovers in the simplest way: it deletes the session, makes it
// again and repeats all calls since its start. The undisturbed server is driven by one of these too.
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

namespace gdn {

class Player {
 public:
  virtual ~Player() = default;

  // One step of each session, of one layer and equally many tokens: the outputs' bytes.
  virtual absl::StatusOr<std::vector<std::string>> Step(const std::vector<SessionStep>& rows) = 0;
  // The same choice for each session.
  virtual absl::Status Accept(const DraftChoice& choice) = 0;
  // Tokens that the session's layers have seen, as the last replies said.
  virtual std::map<int32_t, int64_t> Counts(size_t row) const = 0;

  // These act on the first session.
  virtual absl::StatusOr<std::unique_ptr<Player>> Fork(const std::string& child) = 0;
  virtual absl::StatusOr<std::string> Export() = 0;
  virtual absl::StatusOr<v1::Checkpoint> Checkpoint(const std::string& checkpoint_id) = 0;
  virtual absl::StatusOr<v1::Session> Restore(const std::string& checkpoint_id) = 0;
  // The first snapshot.
  virtual absl::StatusOr<std::string> Watch() = 0;
  // False where the server has no room, or (PREFIX_MISMATCH) the session has been brought back from a durable copy.
  virtual absl::StatusOr<bool> KeepPrefix(const v1::PromptPrefix& prefix) = 0;
  virtual int64_t prefix_tokens() const = 0;  // that it began behind
  // Whether the server has a durable copy of it, so that its client may keep only the inputs behind that copy.
  virtual absl::StatusOr<bool> IsDurable() = 0;

  // All of them.
  virtual absl::Status Delete() = 0;
  // Times that the server had lost steps.
  virtual int64_t recoveries() const = 0;
};

// A soak repeats a call that was given up for so long.
inline constexpr absl::Duration kLongestAnswer = absl::Seconds(60);

absl::StatusOr<std::unique_ptr<Player>> MakeDurablePlayer(Client& client,
                                                          const std::vector<v1::CreateSessionRequest>& create,
                                                          const DurableSessionOptions& options);

enum class CallForm { kUnary, kStream, kAsync };
// One session. `try_timeout`: after which a call is given up and sent again.
absl::StatusOr<std::unique_ptr<Player>> MakeReferencePlayer(Client& client, const v1::CreateSessionRequest& create,
                                                            CallForm form, absl::Duration try_timeout);

}  // namespace gdn
