// DeltaRuleChunkCpu for decays by key channel.
//
// Thread safety and bits: as delta_rule_scan. Ownership: none.
//
//   if (dims.decays_by_channel()) return ChannelChunkCpu(params, pool);
#pragma once

#include "base/thread_pool.h"
#include "kernels/common/delta_rule.h"

namespace gdn {

// `params` must be valid and have tokens. The caller zeroes the rows of padding.
absl::Status ChannelChunkCpu(const DeltaRuleParams& params, ThreadPool& pool);

}  // namespace gdn
