// A session that prefills long prompts while other sessions are measured, in a process of its own: in the same one its
// messages of many MiB would delay the calls that are measured.
//
// Thread safety: RunNeighbour needs a process of its own; NeighbourProcess is for one thread. Ownership: a
// NeighbourProcess owns its process.
//
//   GDN_ASSIGN_OR_RETURN(NeighbourProcess neighbour, NeighbourProcess::Start(self, folder, target, {.tokens = 32768}));
//   ...                                   // it keeps the server busy
//   GDN_RETURN_IF_ERROR(neighbour.Stop());
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/dtype.h"
#include "tools/common/child_process.h"

namespace gdn::bench {

struct NeighbourLoad {
  // Tokens of a prompt. Each prompt is one StreamPrefill with messages of at most 4,096 tokens.
  int tokens = 32768;
  int hidden = 2048;
  DType dtype = DType::kBF16;
  absl::Duration time_limit = absl::Seconds(20);  // longest time for what is in flight when it is stopped
};

inline constexpr char kNeighbour[] = "sessions/bench-neighbour";

class NeighbourProcess {
 public:
  // Starts `self`, the path of this program, and returns at the first reply that it gets from the server at `target`.
  // The session kNeighbour must exist. `folder`: for its log. Errors of ChildProcess; UNAVAILABLE, with the end of the
  // log, if there is no reply within 120 s.
  static absl::StatusOr<NeighbourProcess> Start(const std::string& self, const std::string& folder,
                                                const std::string& target, const NeighbourLoad& load);
  // Ends the prompt after the messages that are in flight, and waits for that. UNAVAILABLE if a call has failed.
  absl::Status Stop();

 private:
  explicit NeighbourProcess(ChildProcess child) : child_(std::move(child)) {}

  ChildProcess child_;
};

// Prefills prompts, one after the other, until SIGTERM, and ends with what is in flight then. Writes `reply_file`, as
// WritePortFile does, at the first reply. Returns the first error. Ends the process with 1 if the server does not
// answer within the time limit.
absl::Status RunNeighbour(const std::string& target, const std::string& reply_file, const NeighbourLoad& load);

}  // namespace gdn::bench
