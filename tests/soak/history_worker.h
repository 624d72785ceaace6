// One form of client at work in a history soak: it makes each kind of call in turn, first after a crash, on the
// undisturbed server and on the other one, and writes down what both answered.
//
// Thread safety: Run in a thread of its own; what SoakWorld names is called from all of them. Ownership: borrows all.
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
  // The server has crashed and is back: returns when all workers have asked for it.
  std::function<void()> crash;
  // How often the crashing server's store has been set back to an earlier copy so far.
  std::function<int64_t()> set_backs;
  std::function<bool()> over;
};

struct WorkerOptions {
  std::string form;  // the sessions' names begin with it
  int sessions = 1;  // stepped together
  uint64_t seed = 1;
  // How its sessions on the tested server are made.
  std::function<absl::StatusOr<std::unique_ptr<Player>>(const std::vector<v1::CreateSessionRequest>&)> make;
};

// The kinds of call that come first after a crash.
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
    int draft = 0;  // tokens that wait for a verdict
    std::vector<int32_t> parents = {};
  };
  struct Input {
    std::vector<SessionStep> rows;
    std::vector<std::vector<std::string>> digests;  // of each row
  };

  absl::StatusOr<Twins> Make(const std::string& name, int sessions);
  absl::StatusOr<Twins> MakeWithPrompt(const std::string& name);
  // OneCall, or "" for the last look at the twins and their end. If a session is lost, all are given up, and the call
  // is made with new ones.
  absl::Status CallOnTwins(Twins& twins, const std::string& call);
  absl::Status TryCall(Twins& twins, const std::string& call);
  // Whether a client may say that a session is lost: after the store was set back (`set_backs`: the times that its
  // calls have met), or where the client cannot have the inputs.
  bool MayBeLost(const absl::Status& status, int64_t set_backs) const;
  // Writes that all sessions of this worker are lost, and deletes what is left of them.
  void GiveAllUp();
  absl::Status OneCall(Twins& twins, const std::string& call);
  void Crash(const std::string& first);

  Input Draw(const std::string& call, int32_t layer, int sessions, int tokens, const std::vector<int32_t>& parents);
  absl::Status Step(Twins& twins, const std::string& call, int32_t layer, int tokens,
                    const std::vector<int32_t>& parents = {});
  absl::Status Draft(Twins& twins, bool tree, const std::string& first = "");
  absl::Status Accept(Twins& twins);
  absl::Status Settle(Twins& twins);
  absl::Status ForkAndStep(Twins& twins);
  absl::Status Export(Twins& twins);
  absl::Status Checkpoint(Twins& twins, const std::string& id);
  // `set_backs`: when the checkpoint had not been made yet.
  absl::Status Restore(Twins& twins, const std::string& id, int64_t set_backs);
  absl::Status KeepAndBegin();
  absl::Status Watch(Twins& twins);
  absl::Status End(Twins& twins);

  HistoryLine Line(const std::string& run, const std::string& session, const std::string& call) const;
  // The same line of both runs, with their counts.
  void Write(const Twins& twins, size_t row, HistoryLine line);

  const SoakWorld world_;
  const WorkerOptions options_;
  Random random_;
  std::string first_;                // the name that the next call comes first under
  int64_t made_ = 0;                 // names used
  int64_t set_backs_ = 0;            // when the last call began
  std::set<std::string> open_ = {};  // sessions that the history has
  bool needs_copy_ = false;          // the session at work began with a state whose inputs its client does not have
  int64_t recoveries_ = 0;
};

}  // namespace gdn
