#include "tools/gdn_bench/cache_size.h"

#include <fstream>
#include <map>
#include <string>
#include <thread>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace gdn::bench {
namespace {

constexpr int64_t kFallbackBytes = int64_t{32} << 20;

std::string ReadLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

// "32768K" -> bytes; 0 where it is not a size.
int64_t ParseCacheSize(absl::string_view text) {
  int64_t unit = 1;
  if (absl::ConsumeSuffix(&text, "K")) {
    unit = int64_t{1} << 10;
  } else if (absl::ConsumeSuffix(&text, "M")) {
    unit = int64_t{1} << 20;
  }
  int64_t value = 0;
  return absl::SimpleAtoi(text, &value) ? value * unit : 0;
}

}  // namespace

int64_t LastLevelCacheBytes() {
  int last_level = 0;
  std::map<std::string, int64_t> caches;  // by the processors that share one
  const unsigned processors = std::thread::hardware_concurrency();
  for (unsigned cpu = 0; cpu < processors; ++cpu) {
    for (int index = 0;; ++index) {
      const std::string folder = absl::StrCat("/sys/devices/system/cpu/cpu", cpu, "/cache/index", index, "/");
      int level = 0;
      if (!absl::SimpleAtoi(ReadLine(folder + "level"), &level)) break;
      if (ReadLine(folder + "type") == "Instruction" || level < last_level) continue;
      if (level > last_level) {
        last_level = level;
        caches.clear();
      }
      caches[ReadLine(folder + "shared_cpu_list")] = ParseCacheSize(ReadLine(folder + "size"));
    }
  }
  int64_t total = 0;
  for (const auto& [sharers, bytes] : caches) total += bytes;
  return total > 0 ? total : kFallbackBytes;
}

}  // namespace gdn::bench
