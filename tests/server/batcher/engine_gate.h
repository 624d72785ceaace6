// Holds the engine thread between two pieces of its work.
//
// Thread safety: call Post once; the latches and Release may be used from any thread. Ownership: a gate must outlive
// the task that it posts, so open it and wait for later work; a blocker may be destroyed at any time.
//
//   EngineBlocker engine(batcher);  // the engine is held: submitted work waits
//   engine.Release();               // the engine continues
#pragma once

#include <latch>
#include <memory>
#include <utility>

#include "server/batcher/batcher.h"

namespace gdn {

struct EngineGate {
  std::latch reached{1};
  std::latch open{1};

  void Pass() {
    reached.count_down();
    open.wait();
  }
  // Queues the gate behind the engine's present work, without waiting.
  void Post(Batcher& batcher) {
    batcher.Post([this](Backend&) { return Pass(), absl::OkStatus(); }, [](const absl::Status&) {});
  }
};

class EngineBlocker {
 public:
  // Returns when the engine is held.
  explicit EngineBlocker(Batcher& batcher) {
    batcher.Post([gate = gate_](Backend&) { return gate->Pass(), absl::OkStatus(); }, [](const absl::Status&) {});
    gate_->reached.wait();
  }
  ~EngineBlocker() { Release(); }
  EngineBlocker(const EngineBlocker&) = delete;
  EngineBlocker& operator=(const EngineBlocker&) = delete;

  void Release() {
    if (!std::exchange(released_, true)) gate_->open.count_down();
  }

 private:
  const std::shared_ptr<EngineGate> gate_ = std::make_shared<EngineGate>();
  bool released_ = false;
};

}  // namespace gdn
