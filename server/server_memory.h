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

// Returns the device memory for session states. Call it once the models are loaded. `slot_bytes`: size of a state of
// the largest model; 0 without models.
int64_t DeviceBudgetBytes(const MemoryOptions& options, Backend& backend, int64_t slot_bytes);
// Returns the host memory for states of idle sessions.
int64_t HostBudgetBytes(const MemoryOptions& options, const BackendInfo& backend);
// Returns the host memory for stored prefixes. `host_state_bytes`: the host memory for states of idle sessions.
int64_t PrefixBudgetBytes(const MemoryOptions& options, int64_t host_state_bytes);
// Returns the most bytes of all snapshots.
int64_t SnapshotBudgetBytes(const MemoryOptions& options, const StateServiceOptions& states, size_t devices);
// Returns the ledger's limits. By default calls have an eighth of the host's memory, but space for four of the largest
// messages, and copies of states have an eighth.
ByteLedgerOptions LedgerOptions(const GdnServerOptions& options, const StateServiceOptions& states, size_t devices);
// Returns the transport's limits. By default its buffers have an eighth of the host's memory, but space for four of the
// largest messages.
TransportLimits TransportLimitsOf(const GdnServerOptions& options);

}  // namespace gdn
