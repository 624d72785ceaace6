// Formats traced calls, as tables for people and as JSON for chrome://tracing.
//
// Thread safety: free functions. Ownership: none.
//
//   absl::PrintF("%s", TraceTables(response));
//   GDN_RETURN_IF_ERROR(file.Append(ChromeTrace(response)));
#pragma once

#include <string>

#include "client/cpp/client.h"

namespace gdn {

// Returns, for each method, the percentiles of each stage over the calls that had this stage; then the slowest calls,
// each with its stages. Times are in microseconds. For a call of several launches, each stage is the sum over these.
std::string TraceTables(const v1::TraceCallsResponse& traced);

// Returns a JSON object in the Trace Event Format, which Perfetto reads too. Process "calls" has the calls with their
// stages, on as many tracks as calls ran at the same time. Process "threads and device" has the work of each server
// thread and of the device; work that several calls share is in it once. Events on a track never overlap: if stages
// overlap, the later one is drawn from the end of the earlier one.
std::string ChromeTrace(const v1::TraceCallsResponse& traced);

}  // namespace gdn
