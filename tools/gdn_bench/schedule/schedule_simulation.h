// Simulates clients, the scheduler and a device in simulated time, to measure waits and the sizes of launches.
//
// A client is one session. It sends a call, waits for the reply, thinks, and continues with the model's next layer, as
// an inference engine does. The device runs one launch at a time; the next one is chosen `lead_us` before the running
// one ends. A launch takes the time that DeviceModel gives, times a random factor within `noise`, which the scheduler
// must learn.
// Thread safety: free functions. The same options give the same result, but for decision_us.
//
//   SimulationResult result = Simulate({.loads = {{.sessions = 10000, .layers = 48}}, .seconds = 10});
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "server/scheduler/scheduler.h"

namespace gdn::bench {

// A group of sessions with equal behaviour.
struct SimulatedLoad {
  std::string name;
  std::string principal = "one";
  int32_t sessions = 1;
  bool prefill = false;
  int64_t tokens = 1;      // tokens of a call
  int32_t layers = 48;     // number of layers that a session calls, one after the other
  int32_t model = 0;       // number of the model; sessions of one model share launches
  double think_us = 1000;  // mean, from a reply to the next call, network included (exponential)
  double begin_us = 0;     // simulated time after which the sessions make their first calls
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
  double window_seconds = 1;  // length of a window of SimulationResult::rows
  uint64_t seed = 1;
};

struct LoadResult {
  std::vector<double> waits_us;  // wait of each call (prefill: of each segment) from ready to run until it ran
  std::vector<double> calls_us;  // time of each call from request to reply
};

struct SimulationResult {
  std::vector<LoadResult> loads;    // parallel to options.loads
  std::vector<double> device_us;    // device time of each load's steps, by their share of a launch's tokens
  std::vector<double> rows;         // mean number of rows of a decode launch, for each window
  std::vector<double> decision_us;  // real CPU time of each of the scheduler's decisions
  size_t most_waiting = 0;
  double busy = 0;  // share of the time that the device worked
  double longest_launch_us = 0;
};

SimulationResult Simulate(const SimulationOptions& options);

}  // namespace gdn::bench
