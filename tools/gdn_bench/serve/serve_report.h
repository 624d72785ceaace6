// The results of `gdn_bench serve`, as a table and as JSON (docs/evidence/benchmarks.md describes both).
//
// Thread safety: free functions.
//
//   std::fputs(ServeTable(report).c_str(), stdout);
#pragma once

#include <string>

#include "nlohmann/json.hpp"
#include "tools/gdn_bench/serve/serve_bench.h"

namespace gdn::bench {

std::string ServeTable(const ServeReport& report);
nlohmann::ordered_json ServeJson(const ServeReport& report);

}  // namespace gdn::bench
