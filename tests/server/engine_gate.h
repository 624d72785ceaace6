// Holds the engine between two pieces of its work.
//
// Thread safety: Post once; the latches from any thread. Ownership: must outlive the task it posts, so open it and wait
// for what follows.
//
//   EngineGate gate;
//   gate.Post(batcher);
//   gate.reached.wait();      // the engine stands still
//   gate.open.count_down();   // and goes on
#pragma once

#include <latch>

#include "server/batcher/batcher.h"

namespace gdn {

struct EngineGate {
  std::latch reached{1};
  std::latch open{1};

  // Queued without waiting, behind the engine's present work.
  void Post(Batcher& batcher) {
    batcher.Post(
        [this](Backend&) {
          reached.count_down();
          open.wait();
          return absl::OkStatus();
        },
        [](const absl::Status&) {});
  }
};

}  // namespace gdn
