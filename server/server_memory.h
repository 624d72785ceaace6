// How much memory the parts of a server may take, where the operator does not say.
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

// The memory that session states may take, once the models are loaded. `slot_bytes` is a state of the largest model, 0
// without models.
int64_t DeviceBudgetBytes(const MemoryOptions& options, Backend& backend, int64_t slot_bytes);
// Host memory for the states of idle sessions.
int64_t HostBudgetBytes(const MemoryOptions& options, const BackendInfo& backend);
// Host memory for kept prefixes, where states of idle sessions may have so much.
int64_t PrefixBudgetBytes(const MemoryOptions& options, int64_t host_state_bytes);
// An eighth of the host's memory each for calls and for copies of states, where nothing else is said.
ByteLedgerOptions LedgerOptions(const GdnServerOptions& options, const StateServiceOptions& states, size_t devices);
// An eighth of the host's memory, and room for four messages of the largest size.
TransportLimits TransportLimitsOf(const GdnServerOptions& options);

}  // namespace gdn
