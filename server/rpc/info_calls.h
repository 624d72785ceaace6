// The parts that tell what the server is and how it does, for calls, metrics and the status page, and the parts that
// admins act on.
//
// Thread safety: constant; what it names is safe from any thread. Ownership: borrows; GdnServer owns the parts.
//
//   response->set_device(info.devices.front().backend.info().device);
//   FillDrain(info.common, info.engines, response->mutable_drain());
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/threads/steady_clock.h"
#include "gdn/v1/admin.pb.h"
#include "server/batcher/engines.h"
#include "server/model/served_model.h"
#include "server/rpc/common_parts.h"
#include "server/session/state_service.h"
#include "server/shared_memory/shared_regions.h"
#include "server/validation/step_input.h"

namespace gdn {

struct InfoParts {
  CommonParts common;
  StateService& states;
  const ModelCatalog& models;
  std::vector<StateDevice> devices;  // by StatePool::device; all have the same numerics
  const Engines& engines;
  const SharedRegions& shared_regions;
  const StepLimits& limits;
  int32_t max_queued_steps = 0;
  const SteadyClock& rate_clock;  // for quotas of tokens per second
  std::string version;
  std::string numerics_id;  // of the states (NumericsIdFor); equal ids promise equal bits
  int64_t recovered_sessions = 0;
};

struct AdminParts {
  CommonParts common;
  const Engines& engines;
  std::function<std::string()> metrics_text;    // returns the text of /metrics
  std::function<void()> begin_drain = nullptr;  // starts a drain soon, like SIGTERM; nullptr: Drain is not possible
};

// Writes the progress of the drain to `out`. Call only once the drain has begun.
void FillDrain(const CommonParts& common, const Engines& engines, v1::DrainProgress* out);

}  // namespace gdn
