#include "base/thread_pulse.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <string_view>

#include "base/string_cat.h"

namespace gdn {

int ThisThreadNumber() { return static_cast<int>(syscall(SYS_gettid)); }

std::optional<int64_t> SwitchesOf(int thread) {
  std::ifstream status(StrCat("/proc/self/task/", thread, "/status"));
  int64_t switches = -1;
  for (std::string line; std::getline(status, line);) {
    const std::string_view text = line;
    if (text.starts_with("State:\tR")) return std::nullopt;
    for (const std::string_view count : {"voluntary_ctxt_switches:", "nonvoluntary_ctxt_switches:"}) {
      if (!text.starts_with(count)) continue;
      switches = (switches < 0 ? 0 : switches) + std::atoll(line.c_str() + count.size());
    }
  }
  return switches;
}

}  // namespace gdn
