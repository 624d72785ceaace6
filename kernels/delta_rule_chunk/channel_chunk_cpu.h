// DeltaRuleChunkCpu where decays go by key channel.
//
// Thread safety and bits: as delta_rule_scan. Ownership: none.
//
//   if (dims.decays_by_channel()) return ChannelChunkCpu(params, pool);
#pragma once

#include "base/thread_pool.h"
#include "kernels/common/delta_rule.h"

namespace gdn {

// The params are valid and have tokens; rows of padding are the caller's.
absl::Status ChannelChunkCpu(const DeltaRuleParams& params, ThreadPool& pool);

}  // namespace gdn
