// Reads single keys from the terminal without echo, while a screen stays.
//
// The terminal's settings are restored when the object is destroyed, or when SIGINT or SIGTERM ends the process.
// Thread safety: for the main thread; one object at a time. Ownership: changes the terminal of stdin.
//
//   KeyWatch keys;
//   if (keys.WaitFor('q', absl::Seconds(2))) return kExitOk;
#pragma once

#include "absl/time/time.h"

namespace gdn {

class KeyWatch {
 public:
  KeyWatch();  // turns off echo and line input on stdin; does nothing if stdin is no terminal
  ~KeyWatch();
  KeyWatch(const KeyWatch&) = delete;
  KeyWatch& operator=(const KeyWatch&) = delete;

  // Waits, and returns true as soon as the key is typed; false after `time`. Other keys are dropped. Without a terminal
  // it sleeps for `time`.
  bool WaitFor(char key, absl::Duration time);

 private:
  bool watching_ = false;
};

}  // namespace gdn
