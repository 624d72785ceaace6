// A well-behaved client that decodes at a fixed rate in an open loop: it sends each step when it is due, even if
// earlier ones have no reply. Latencies count from the time that a step was due. It checks every answer with the feed.
//
// Thread safety: one thread; Run makes a thread for each group of sessions and joins all. Ownership: borrows the feed.
//
//   WellBehaved client(&feed, "unix:/tmp/x/socket", {.calls_per_s = 100});
//   GDN_RETURN_IF_ERROR(client.Create());
//   const LoadFigures alone = client.Run([&] { return absl::Now() < end; });
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/cpp/client.h"
#include "tests/soak/step_feed.h"

namespace gdn {

struct WellBehavedOptions {
  std::string name = "good";  // name of its principal, and prefix of its sessions' names
  double calls_per_s = 100;
  int groups = 4;  // groups of sessions, each of which is decoded in one call
  int rows = 8;    // sessions in a group
};

// Times of one call, in seconds of the steady clock.
struct CallTimes {
  double due = 0;
  double sent = 0;
  double answered = 0;
};

struct LoadFigures {
  double seconds = 0;
  int64_t offered = 0;   // calls that were due
  int64_t answered = 0;  // calls that succeeded before the end
  int64_t errors = 0;    // calls that failed or had wrong bits
  std::string first_error;
  std::vector<CallTimes> calls = {};  // sorted by latency from the time that they were due, the fastest first

  double Quantile(double fraction) const;
  double answered_part() const { return static_cast<double>(answered) / static_cast<double>(offered); }
};

class WellBehaved {
 public:
  WellBehaved(const StepFeed* feed, const std::string& target, const WellBehavedOptions& options);

  // Makes the sessions.
  absl::Status Create();
  // Sends steps when they are due, as long as goes_on() is true.
  LoadFigures Run(const std::function<bool()>& goes_on);

 private:
  struct Group {
    std::vector<std::string> ids;
    std::vector<int64_t> tokens;  // of each layer
    int64_t calls = 0;
  };

  absl::Status CreateGroup(const Group& group);
  LoadFigures RunGroup(size_t number, double begin_s, const std::function<bool()>& goes_on);
  absl::Status Step(Group& group, CallTimes& times);

  const StepFeed* const feed_;
  const WellBehavedOptions options_;
  const std::unique_ptr<Client> client_;
  std::vector<Group> groups_;
};

}  // namespace gdn
