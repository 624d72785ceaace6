// Holds the engine thread between two pieces of its work.
//
// Thread safety: call Post once; the latches and Release may be used from any thread. Ownership: the batcher must
// outlive the task that a gate posts. A gate waits for it when it is destroyed, so open it before; a blocker opens its
// own.
//
//   EngineBlocker engine(batcher);  // the engine is held: submitted work waits
//   engine.Release();               // the engine continues
#pragma once

#include <latch>
#include <utility>

#include "absl/status/status.h"
#include "base/task/task.h"
#include "server/batcher/batcher.h"
#include "tests/server/batcher/engine_flows.h"

namespace gdn {

class EngineGate {
 public:
  std::latch reached{1};
  std::latch open{1};

  // Queues the gate behind the engine's present work, without waiting.
  void Post(Batcher& batcher) { flows_.group.Spawn(Hold(batcher)); }

 private:
  Task<void> Hold(Batcher& batcher) {
    const auto pass = [this](Backend&) {
      reached.count_down();
      open.wait();
      return absl::OkStatus();
    };
    static_cast<void>(co_await batcher.Run(pass));
  }

  EngineFlows flows_;
};

class EngineBlocker {
 public:
  // Returns when the engine is held.
  explicit EngineBlocker(Batcher& batcher) {
    gate_.Post(batcher);
    gate_.reached.wait();
  }
  ~EngineBlocker() { Release(); }
  EngineBlocker(const EngineBlocker&) = delete;
  EngineBlocker& operator=(const EngineBlocker&) = delete;

  void Release() {
    if (!std::exchange(released_, true)) gate_.open.count_down();
  }

 private:
  EngineGate gate_;
  bool released_ = false;
};

}  // namespace gdn
