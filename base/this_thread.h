// What the calling thread is called, and how it shares the processors with others.
//
// Thread safety: all of it concerns the calling thread alone.
//
//   NameThisThread("gdn-write");
//   const GivesWay gives_way;       // for as long as it lives, this thread's work is less urgent than that of others
//   for (piece : pieces) { Copy(piece); GiveWay(); }
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace gdn {

// Bytes to copy, to hash or to write between two GiveWay: a few microseconds of work.
inline constexpr size_t kGiveWayBytes = size_t{16} << 10;

// For tools that list threads. The system keeps the first 15 letters.
void NameThisThread(std::string_view name);

// What it was called when it first asked, and its number: "gdn-engine.4711".
const std::string& ThisThreadLabel();

// Its share where others want the processor too. `niceness` 0 to 19: the larger, the smaller; 0 changes nothing.
void LowerThisThread(int niceness);

// While one lives, GiveWay on its thread lets others in. One inside another does nothing.
class GivesWay {
 public:
  static bool here();  // whether one lives on the calling thread

  GivesWay();
  ~GivesWay();
  GivesWay(const GivesWay&) = delete;
  GivesWay& operator=(const GivesWay&) = delete;

 private:
  const bool outermost_;
};

// Lets the threads in that wait for this processor; where none do it is back at once. A low priority is not enough: a
// scheduler may let whoever runs go on to the end of its slice, which is milliseconds, while one that woke up waits
// behind it. Keeps about a fifth of the time for this thread, however many the others are. False where it did not let
// them in: for the sake of that fifth, or without a GivesWay.
bool GiveWay();

}  // namespace gdn
