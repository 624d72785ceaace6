// `gdn_bench schedule`: measures the scheduler under load. In simulated time: waits, shares and the rows of a launch.
// In real time: how long a decision takes.
//
// Thread safety: one thread.
//
//   std::fputs(ScheduleTable(RunScheduleBench({.seconds = 60})).c_str(), stdout);
#pragma once

#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/gdn_bench/schedule/schedule_simulation.h"

namespace gdn::bench {

struct ScheduleBenchOptions {
  double seconds = 60;  // simulated time of each case
  uint64_t seed = 1;
};

struct ScheduleCase {
  std::string name;
  std::string what;
  SimulationOptions options = {};
  SimulationResult result = {};
};

std::vector<ScheduleCase> RunScheduleBench(const ScheduleBenchOptions& options);

std::string ScheduleTable(const std::vector<ScheduleCase>& cases);
nlohmann::ordered_json ScheduleJson(const std::vector<ScheduleCase>& cases);

}  // namespace gdn::bench
