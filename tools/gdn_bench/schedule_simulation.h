// Clients, a device and the scheduler between them, in simulated time: who waits how long, and how full launches are.
//
// A client is one session. It sends a call, waits for the reply, thinks, and goes on with the model's next layer, as an
// inference engine does. The device takes launches one after the other; the next is chosen when the one that runs has
// `lead_us` left. A launch's time is the model's (`decode_us`, `prefill_us`) times a factor of its own, within `noise`:
// the scheduler has to learn it.
// Thread safety: free functions. The same options give the same result, but for decision_us.
//
//   SimulationResult result = Simulate({.loads = {{.sessions = 10000, .layers = 48}}, .seconds = 10});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace gdn::bench {

// Sessions that are alike.
struct SimulatedLoad {
  std::string name;
  std::string principal = "one";
  int32_t sessions = 1;
  bool prefill = false;
  int64_t tokens = 1;      // of a call
  int32_t layers = 48;     // that a session goes through, one after the other
  int32_t model = 0;       // sessions of one model share launches
  double think_us = 1000;  // mean, from a reply to the next call, network included (exponential)
  double begin_us = 0;
};

struct DeviceModel {  // one MI50, from the kernels' measured and estimated times
  double decode_fixed_us = 95;
  double decode_row_us = 9.5;
  double prefill_fixed_us = 150;
  double prefill_token_us = 6.5;
  double noise = 0.2;
};

struct SimulationOptions {
  std::vector<SimulatedLoad> loads;
  std::vector<std::pair<std::string, double>> weights;
  SchedulerOptions scheduler;
  DeviceModel device;
  double lead_us = 60;
  int32_t spares = 8;
  double seconds = 10;
  double window_seconds = 1;  // of `rows`
  uint64_t seed = 1;
};

struct LoadResult {
  std::vector<double> waits_us;  // of each call (a prefill: of each segment), from when it could run until it did
  std::vector<double> calls_us;  // from call to reply
};

struct SimulationResult {
  std::vector<LoadResult> loads;    // as options.loads
  std::vector<double> device_us;    // that each load's steps took, by their share of tokens
  std::vector<double> rows;         // of a decode launch, mean in each window
  std::vector<double> decision_us;  // of this machine's time, its thread's alone
  size_t most_waiting = 0;
  double busy = 0;  // share of the time that the device worked
  double longest_launch_us = 0;
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace gdn::bench
