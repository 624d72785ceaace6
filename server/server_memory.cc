#include "server/server_memory.h"

#include <algorithm>

#include "base/server_process.h"
#include "kernels/common/reserved_memory.h"

namespace gdn {
namespace {

// Returns the limit for all sessions and named checkpoints together. By default it is the size of the tiers, so that
// later sessions find space. There is no limit if that size is unknown (Redis, a disk without a limit), or if there is
// neither a tier below the device nor a file of principals.
int64_t SessionBytes(const GdnServerOptions& options, const StateServiceOptions& states, size_t devices) {
  if (options.memory.session_bytes.has_value()) return *options.memory.session_bytes;
  if (!states.redis.endpoint.empty()) return kNoByteLimit;
  const int64_t memory = static_cast<int64_t>(devices) * states.device_bytes + states.host_bytes;
  if (!states.disk.directory.empty())
    return states.disk.limit_bytes > 0 ? std::max(states.disk.limit_bytes, memory) : kNoByteLimit;
  return states.host_bytes > 0 || !options.principals.file.empty() ? memory : kNoByteLimit;
}

}  // namespace

int64_t DeviceBudgetBytes(const MemoryOptions& options, Backend& backend, int64_t slot_bytes) {
  if (options.state_slots > 0) return options.state_slots * slot_bytes;
  if (options.device_state_bytes > 0) return options.device_state_bytes;
  if (backend.info().lazy_memory) return backend.info().memory_bytes / 2;
  // The last quarter is for workspaces, spare slots and the runtime itself.
  return backend.FreeMemoryBytes() / 4 * 3;
}

// With a GPU, most of the host's memory is idle. On a CPU, states on the device are in host memory already.
int64_t HostBudgetBytes(const MemoryOptions& options, const BackendInfo& backend) {
  if (options.host_state_bytes.has_value()) return *options.host_state_bytes;
  if (backend.unified_memory) return 0;
  return HostMemoryBytes() / 4;
}

int64_t PrefixBudgetBytes(const MemoryOptions& options, int64_t host_state_bytes) {
  if (options.prefix_cache_bytes.has_value()) return *options.prefix_cache_bytes;
  return host_state_bytes > 0 ? host_state_bytes / 2 : HostMemoryBytes() / 16;
}

int64_t SnapshotBudgetBytes(const MemoryOptions& options, const StateServiceOptions& states, size_t devices) {
  if (options.snapshot_bytes.has_value()) return *options.snapshot_bytes;
  return (static_cast<int64_t>(devices) * states.device_bytes + states.host_bytes) / 4;
}

ByteLedgerOptions LedgerOptions(const GdnServerOptions& options, const StateServiceOptions& states, size_t devices) {
  const int64_t eighth = HostMemoryBytes() / 8;
  const int64_t calls = options.memory.call_bytes.value_or(std::max(eighth, 4 * options.limits.max_message_bytes));
  // If the disk is full and there is a Redis, states go to Redis. So the disk's limit then ends nothing.
  const bool disk_ends = states.disk.limit_bytes > 0 && states.redis.endpoint.empty();
  return {.pools = {
              {BytePool::kCalls, {.limit_bytes = calls, .flag = "--call-bytes"}},
              {BytePool::kCopies, {.limit_bytes = options.memory.copy_bytes.value_or(eighth), .flag = "--copy-bytes"}},
              {BytePool::kReplies, {.limit_bytes = options.memory.stored_reply_bytes, .flag = "--stored-reply-bytes"}},
              {BytePool::kStates, {.limit_bytes = SessionBytes(options, states, devices), .flag = "--session-bytes"}},
              {BytePool::kSnapshots,
               {.limit_bytes = SnapshotBudgetBytes(options.memory, states, devices),
                .headroom = 0,  // an older snapshot makes room for a newer one
                .flag = "--snapshot-bytes"}},
              {BytePool::kDisk,
               {.limit_bytes = disk_ends ? states.disk.limit_bytes : kNoByteLimit, .flag = "--disk-state-bytes"}}}};
}

TransportLimits TransportLimitsOf(const GdnServerOptions& options) {
  TransportLimits limits = options.transport;
  if (limits.memory_bytes.value_or(0) == 0) {
    limits.memory_bytes = std::max(HostMemoryBytes() / 8, 4 * options.limits.max_message_bytes);
  }
  // Files, regions of shared memory, Redis and the HTTP port need descriptors too.
  ConnectionLimits& connections = limits.connections;
  if (connections.connections == 0) connections.connections = std::max<int64_t>(1, DescriptorLimit() / 4 * 3);
  if (connections.connections_per_peer == 0) {
    connections.connections_per_peer = std::max<int64_t>(1, connections.connections / 2);
  }
  return limits;
}

}  // namespace gdn
