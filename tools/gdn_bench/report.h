// The results of a measurement, as a table for people and as JSON (docs/evidence/benchmarks.md describes both).
//
// Thread safety: free functions.
//
//   std::fputs(KernelTable(report).c_str(), stdout);
//   GDN_RETURN_IF_ERROR(WriteJson(KernelJson(report), &file));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/files/output_file.h"
#include "nlohmann/json.hpp"
#include "tools/gdn_bench/kernels/kernel_bench.h"
#include "tools/gdn_bench/states/state_bench.h"

namespace gdn::bench {

std::string KernelTable(const KernelReport& report);
nlohmann::ordered_json KernelJson(const KernelReport& report);

std::string StateTable(const StateReport& report);
nlohmann::ordered_json StateJson(const StateReport& report);

// Returns the summary as JSON, with each value multiplied by `unit` (for example 1e6 for seconds in microseconds).
nlohmann::ordered_json SummaryJson(const Summary& summary, double unit);

// Returns a warning in one line, with its newline; "" if `load_average` is at most 0.5, so that the machine counts as
// idle.
std::string BusyWarning(double load_average);

// Writes the JSON, indented and with a newline at the end, and commits the file. nullptr: prints to stdout. Errors of
// OutputFile's Append and Commit.
absl::Status WriteJson(const nlohmann::ordered_json& json, OutputFile* file);

}  // namespace gdn::bench
