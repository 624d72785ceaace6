// Names the calling thread, sets how it shares the processors with other threads, and distinguishes a thread that hangs
// in the kernel from one that is slow.
//
// Thread safety: every function concerns the calling thread only, except SwitchesOf.
//
//   NameThisThread("gdn-write");
//   const GivesWay gives_way;       // for as long as it lives, this thread's work is less urgent than that of others
//   for (piece : pieces) { Copy(piece); GiveWay(); }
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace gdn {

// Bytes to copy, hash or write between two GiveWay calls: a few microseconds of work.
inline constexpr size_t kGiveWayBytes = size_t{16} << 10;

// Sets the name that tools show for this thread. The system keeps the first 15 characters.
void NameThisThread(std::string_view name);

// Returns the thread's name at the first call, and its number: "gdn-engine.4711".
const std::string& ThisThreadLabel();

// Returns the calling thread's kernel id (tid).
int ThisThreadNumber();

// Returns how often this process's thread has left a processor, which the kernel counts; nullopt if it runs or waits
// for a processor; -1 if the system does not tell (no /proc, or no such thread). The count of a thread that waits for
// one thing (a disk, a peer) does not change. A thread that works in many short waits, or that waits for a processor,
// is not hanging, even on a busy machine.
std::optional<int64_t> SwitchesOf(int thread);

// Lowers this thread's priority. `niceness` is 0 (no change) to 19 (lowest). A refusal of the system is ignored.
void LowerThisThread(int niceness);

// While a GivesWay lives, its thread's work counts as less urgent, and GiveWay may yield. Further ones on the same
// thread have no effect.
class GivesWay {
 public:
  static bool here();  // true if one lives on the calling thread

  GivesWay();
  ~GivesWay();
  GivesWay(const GivesWay&) = delete;
  GivesWay& operator=(const GivesWay&) = delete;

 private:
  const bool outermost_;
};

// Yields the processor to threads that wait for it; returns at once if none do. Low priority alone is not enough: a
// scheduler may let the running thread finish its slice of milliseconds before a thread that woke up. Keeps about a
// fifth of the time for this thread. Returns false if it did not yield: to keep that fifth, or without a GivesWay.
bool GiveWay();

}  // namespace gdn
