// A client that decodes at a fixed rate and minds its own business: when a step is due it is sent, whatever became of
// those before (an open loop), and latencies count from then. Every answer is compared with what was learnt.
//
// Thread safety: one thread; Run makes one for each group of sessions and ends with them. Ownership: borrows the feed.
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
  std::string name = "good";  // of its principal and its sessions
  double calls_per_s = 100;
  int groups = 4;  // of sessions, each decoded in one call
  int rows = 8;    // sessions of a group
};

// One call, by the steady clock. Unit: seconds.
struct CallTimes {
  double due = 0;
  double sent = 0;
  double answered = 0;
};

struct LoadFigures {
  double seconds = 0;
  int64_t offered = 0;   // calls that were due
  int64_t answered = 0;  // well, before the end
  int64_t errors = 0;    // wrong bits among them
  std::string first_error;
  std::vector<CallTimes> calls = {};  // from the fastest to the slowest, counted from when they were due

  double Quantile(double fraction) const;
  double answered_part() const { return static_cast<double>(answered) / static_cast<double>(offered); }
};

class WellBehaved {
 public:
  WellBehaved(const StepFeed* feed, const std::string& target, const WellBehavedOptions& options);

  // Makes its sessions.
  absl::Status Create();
  // Sends what is due for as long as `goes_on` says.
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
