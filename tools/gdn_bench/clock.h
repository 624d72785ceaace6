// The clock that everything here is timed with.
//
// Thread safety: a free function.
//
//   const double start = NowSeconds();
#pragma once

#include <chrono>

namespace gdn::bench {

inline double NowSeconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace gdn::bench
