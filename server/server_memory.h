// Default sizes of the memory that the parts of a server may use, if the operator sets none.
//
// Thread safety: free functions. Ownership: none.
//
//   state_options.device_bytes = DeviceBudgetBytes(options.memory, backend, slot_bytes);
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/backend.h"
#include "server/admission/byte_ledger.h"
#include "server/options/server_options.h"

namespace gdn {

// Returns the bytes of device memory for session states. By default these are three quarters of what is free, or half
// of all memory if the backend takes memory lazily. Call it once the models are loaded. `slot_bytes`: size of a state
// of the largest model; 0 without models.
int64_t DeviceBudgetBytes(const MemoryOptions& options, Backend& backend, int64_t slot_bytes);
// Returns the bytes of host memory for states of idle sessions. By default a quarter of the host's memory; 0 if the
// backend's memory is the host's.
int64_t HostBudgetBytes(const MemoryOptions& options, const BackendInfo& backend);
// Returns the bytes of host memory for stored prefixes. By default half of `host_state_bytes`, the host memory for
// states of idle sessions, or if that is 0 a sixteenth of the host's memory.
int64_t PrefixBudgetBytes(const MemoryOptions& options, int64_t host_state_bytes);
// Returns the most bytes of all snapshots. By default a quarter of the memory for states on all devices and the host.
// `devices`: their number.
int64_t SnapshotBudgetBytes(const MemoryOptions& options, const StateServiceOptions& states, size_t devices);
// Returns the ledger's limits. By default calls have an eighth of the host's memory, but space for four of the largest
// messages, and copies of states have an eighth. `devices`: their number.
ByteLedgerOptions LedgerOptions(const GdnServerOptions& options, const StateServiceOptions& states, size_t devices);
// Returns the transport's limits. By default its buffers have an eighth of the host's memory, but space for four of the
// largest messages. Connections have three quarters of the process's descriptors, and one peer half of these.
TransportLimits TransportLimitsOf(const GdnServerOptions& options);

}  // namespace gdn
