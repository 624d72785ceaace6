// The results of a measurement, as a table for people and as JSON (docs/evidence/benchmarks.md describes both).
//
// Thread safety: free functions.
//
//   std::fputs(KernelTable(report).c_str(), stdout);
//   GDN_RETURN_IF_ERROR(WriteJson(KernelJson(report), &file));
#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/output_file.h"
#include "nlohmann/json.hpp"
#include "tools/gdn_bench/kernel_bench.h"
#include "tools/gdn_bench/state_bench.h"

namespace gdn::bench {

std::string KernelTable(const KernelReport& report);
nlohmann::ordered_json KernelJson(const KernelReport& report);

std::string StateTable(const StateReport& report);
nlohmann::ordered_json StateJson(const StateReport& report);

// In a unit of which a second, or a byte a second, has so many.
nlohmann::ordered_json SummaryJson(const Summary& summary, double unit);

// A line; none where the machine was idle.
std::string BusyWarning(double load_average);

// Indented, with a newline at the end. nullptr is stdout. Commits the file; errors are OutputFile's.
absl::Status WriteJson(const nlohmann::ordered_json& json, OutputFile* file);

}  // namespace gdn::bench
