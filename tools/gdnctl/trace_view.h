// Traced calls, as tables for people and for chrome://tracing.
//
// Thread safety: free functions. Ownership: none.
//
//   absl::PrintF("%s", TraceTables(response));
//   GDN_RETURN_IF_ERROR(file.Append(ChromeTrace(response)));
#pragma once

#include <string>

#include "client/cpp/client.h"

namespace gdn {

// For each method: the percentiles of each stage, over the calls that went through it; then the slowest calls of all,
// each by stage. Times in microseconds. A call of several launches counts the sum of each stage.
std::string TraceTables(const v1::TraceCallsResponse& traced);

// A JSON object in the Trace Event Format, which Perfetto reads too. Process "calls" has a track for each call that was
// there at the same time, with the call and its stages inside; "threads and device" has what each thread of the server
// did, and the device, with what several calls share told once. On a track nothing overlaps: where stages do, the later
// begins where the earlier ends.
std::string ChromeTrace(const v1::TraceCallsResponse& traced);

}  // namespace gdn
