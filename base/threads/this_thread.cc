#include "base/threads/this_thread.h"

#include <pthread.h>
#include <sched.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <string>

#include "base/string_cat.h"

namespace gdn {
namespace {

using Clock = std::chrono::steady_clock;

// Whoever yields is charged the rest of its slice: beside threads that never sleep it would hardly run again.
constexpr int kMostAwayOfWork = 4;
constexpr size_t kNameLetters = 15;

struct Sharing {
  bool gives_way = false;
  Clock::time_point since;  // when it got the processor last
  Clock::duration work{0};
  Clock::duration away{0};
};

thread_local Sharing t_sharing;

}  // namespace

void NameThisThread(std::string_view name) {
  pthread_setname_np(pthread_self(), std::string(name.substr(0, kNameLetters)).c_str());
}

const std::string& ThisThreadLabel() {
  thread_local const std::string label = [] {
    char name[kNameLetters + 1] = {};
    pthread_getname_np(pthread_self(), name, sizeof(name));
    return StrCat(name, ".", ThisThreadNumber());
  }();
  return label;
}

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

void LowerThisThread(int niceness) {
  // Linux gives threads a priority of their own. Refused only where the process may not lower itself: not a reason to
  // fail.
  if (niceness > 0) setpriority(PRIO_PROCESS, static_cast<id_t>(ThisThreadNumber()), niceness);
}

GivesWay::GivesWay() : outermost_(!t_sharing.gives_way) {
  if (outermost_) t_sharing = {.gives_way = true, .since = Clock::now()};
}

bool GivesWay::here() { return t_sharing.gives_way; }

GivesWay::~GivesWay() {
  if (outermost_) t_sharing.gives_way = false;
}

bool GiveWay() {
  Sharing& sharing = t_sharing;
  if (!sharing.gives_way) return false;
  const Clock::time_point before = Clock::now();
  sharing.work += before - sharing.since;
  sharing.since = before;
  if (sharing.away > kMostAwayOfWork * sharing.work) return false;
  sched_yield();
  sharing.since = Clock::now();
  sharing.away += sharing.since - before;
  return true;
}

}  // namespace gdn
