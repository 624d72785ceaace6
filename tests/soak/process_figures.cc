#include "tests/soak/process_figures.h"

#include <sched.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

// Returns the text behind `name` and a colon in a file of /proc; "" if there is none.
std::string FieldOf(const std::string& file, std::string_view name) {
  std::ifstream lines(file);
  for (std::string line; std::getline(lines, line);) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 1));
    if (std::string(absl::StripAsciiWhitespace(parts.first)) == name) {
      return std::string(absl::StripAsciiWhitespace(parts.second));
    }
  }
  return "";
}

int64_t BytesOf(const std::string& file, std::string_view name) {
  int64_t kibibytes = 0;
  const std::string text = FieldOf(file, name);  // "1234 kB"
  return absl::SimpleAtoi(text.substr(0, text.find(' ')), &kibibytes) ? kibibytes << 10 : 0;
}

}  // namespace

absl::StatusOr<ProcessFigures> ReadProcess(pid_t pid) {
  const std::string folder = StrCat("/proc/", pid);
  ProcessFigures figures;
  figures.resident_bytes = BytesOf(folder + "/status", "VmRSS");
  figures.peak_resident_bytes = BytesOf(folder + "/status", "VmHWM");
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder + "/fd", error), end; !error && entry != end;
       entry.increment(error)) {
    ++figures.descriptors;
  }
  if (figures.resident_bytes > 0 && figures.descriptors > 0) return figures;
  return absl::NotFoundError(StrCat("process ", pid, " is gone, or /proc does not show it"));
}

std::vector<int> Processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> processors;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) return processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.push_back(i);
  }
  return processors;
}

absl::Status ThisThreadRunsOn(const std::vector<int>& processors) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (const int processor : processors) CPU_SET(processor, &set);
  if (sched_setaffinity(0, sizeof(set), &set) == 0) return absl::OkStatus();
  return absl::InternalError(StrCat("sched_setaffinity: ", std::strerror(errno)));
}

std::string MachineName() {
  return StrCat(Processors().size(), " processors, ", FieldOf("/proc/cpuinfo", "model name"));
}

}  // namespace gdn
