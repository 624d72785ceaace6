// One form of client in a history soak. It makes each kind of call as the first one after a crash, on the undisturbed
// server and on the tested one, and records the answers of both.
//
// Thread safety: each Run needs its own thread, and all of them use the parts of SoakWorld. Ownership: borrows all.
//
//   HistoryWorker worker({.truth = *truth, .tested = *tested, .writer = *writer, .crash = crash}, {.form = "batch"});
//   GDN_RETURN_IF_ERROR(worker.Run(/*rounds=*/1));
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/soak/history.h"
#include "tests/soak/player.h"
#include "tests/support/random.h"

namespace gdn {

struct SoakWorld {
  Client& truth;
  Client& tested;
  HistoryWriter& writer;
  // Crashes and restarts the tested server when all workers have called this, and then returns.
  std::function<void()> crash;
  // Returns how often the tested server's store has been set back to an earlier copy so far.
  std::function<int64_t()> set_backs;
  std::function<bool()> over;
};

struct WorkerOptions {
  std::string form;  // prefix of the sessions' names
  int sessions = 1;  // number of sessions that are stepped together
  uint64_t seed = 1;
  // Makes the worker's sessions on the tested server.
  std::function<absl::StatusOr<std::unique_ptr<Player>>(const std::vector<v1::CreateSessionRequest>&)> make;
};

// Returns the kinds of call that are tested as the first one after a crash.
const std::vector<std::string>& SoakCalls();

class HistoryWorker {
 public:
  HistoryWorker(const SoakWorld& world, WorkerOptions options)
      : world_(world), options_(std::move(options)), random_(options_.seed) {}

  absl::Status Run(int rounds);
  int64_t recoveries() const { return recoveries_; }

 private:
  // The same sessions on both servers.
  struct Twins {
    std::vector<std::string> ids;
    std::vector<std::unique_ptr<Player>> truth;
    std::unique_ptr<Player> tested;
    int draft = 0;  // tokens of a draft that is pending
    std::vector<int32_t> parents = {};
  };
  struct Input {
    std::vector<SessionStep> rows;
    std::vector<std::vector<std::string>> digests;  // of each row
  };

  absl::StatusOr<Twins> Make(const std::string& name, int sessions);
  absl::StatusOr<Twins> MakeWithPrompt(const std::string& name);
  // Makes the call `call`; "": compares the twins a last time and deletes them. If a session is lost, gives all up and
  // makes the call with new sessions.
  absl::Status CallOnTwins(Twins& twins, const std::string& call);
  absl::Status TryCall(Twins& twins, const std::string& call);
  // True if a client may report that a session is lost: if the store was set back since `set_backs` was read, or the
  // client cannot have the inputs.
  bool MayBeLost(const absl::Status& status, int64_t set_backs) const;
  // Records that all sessions of this worker are lost, and deletes them.
  void GiveAllUp();
  absl::Status OneCall(Twins& twins, const std::string& call);
  void Crash(const std::string& first);

  Input Draw(const std::string& call, int32_t layer, int sessions, int tokens, const std::vector<int32_t>& parents);
  absl::Status Step(Twins& twins, const std::string& call, int32_t layer, int tokens,
                    const std::vector<int32_t>& parents = {});
  absl::Status Draft(Twins& twins, bool tree, const std::string& first = "");
  absl::Status Accept(Twins& twins);
  // Draws tokens of a draft to accept. Returns them as a path.
  std::vector<int32_t> DrawChoice(int draft, const std::vector<int32_t>& parents, DraftChoice* choice);
  absl::Status StepMixed(Twins& twins, int32_t layer);
  absl::Status Settle(Twins& twins);
  absl::Status ForkAndStep(Twins& twins);
  absl::Status Export(Twins& twins);
  absl::Status Checkpoint(Twins& twins, const std::string& id);
  // `set_backs`: the number of set-backs before the checkpoint was made.
  absl::Status Restore(Twins& twins, const std::string& id, int64_t set_backs);
  absl::Status KeepAndBegin();
  absl::Status Watch(Twins& twins);
  absl::Status End(Twins& twins);

  HistoryLine Line(const std::string& run, const std::string& session, const std::string& call) const;
  // Writes the line for both runs, each with its token counts.
  void Write(const Twins& twins, size_t row, HistoryLine line);

  const SoakWorld world_;
  const WorkerOptions options_;
  Random random_;
  std::string first_;                // kind of the next call, if it is the first after a crash
  int64_t made_ = 0;                 // number of session names used
  int64_t set_backs_ = 0;            // number of set-backs when the last call began
  std::set<std::string> open_ = {};  // sessions in the history that have not ended
  bool needs_copy_ = false;          // the session began with a state whose inputs its client does not have
  int64_t recoveries_ = 0;
};

}  // namespace gdn
