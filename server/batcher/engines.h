// The engines of all devices, and the submission of steps to several of them at once.
//
// Thread safety: safe from any thread. Ownership: owns the engines; their backends must outlive it. The destructor
// first runs all submitted jobs.
//
//   Engines engines(std::move(batchers));  // by StatePool::device
//   GDN_RETURN_IF_ERROR(engines.Submit({{.device = 0, .job = a}, {.device = 1, .job = b}}));
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/batcher/batcher.h"
#include "server/batcher/step_job.h"

namespace gdn {

class Engines {
 public:
  explicit Engines(std::vector<std::unique_ptr<Batcher>> batchers) : batchers_(std::move(batchers)) {}

  int32_t size() const { return static_cast<int32_t>(batchers_.size()); }
  Batcher& at(int32_t device) { return *batchers_[static_cast<size_t>(device)]; }
  const Batcher& at(int32_t device) const { return *batchers_[static_cast<size_t>(device)]; }

  // Sets the weight of this account in sharing each device's time, as Batcher::SetWeight. `weight` is above 0.
  void SetWeight(const std::string& account, double weight);

  // A call's rows whose states are on one device, as one job. `device`: 0 .. size() - 1.
  struct Part {
    int32_t device = 0;
    StepJobPtr job;
  };
  // Submits the jobs of all parts (at least one), or none. Errors of Batcher::Submit. Only the last part's job may run
  // on the caller's thread, if `where` allows it.
  absl::Status Submit(std::vector<Part> parts, Batcher::Where where = Batcher::Where::kEngineThread);

  // Drains all engines at the same time, each as Batcher::Drain. Blocks; returns true if all are done within `timeout`.
  bool Drain(absl::Duration timeout);
  bool draining() const { return batchers_.front()->draining(); }
  size_t queued_steps() const;

 private:
  const std::vector<std::unique_ptr<Batcher>> batchers_;
};

}  // namespace gdn
