// Whether a stored state belongs to a session's model, shape and layers.
//
// Thread safety: a free function. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(CheckStateFits(file.header, layers, session->spec()));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "server/session/session.h"

namespace gdn {

// FAILED_PRECONDITION (STATE_MISMATCH: field, found, expected) where the state is of another model, other dims or other
// layers than `spec`.
absl::Status CheckStateFits(const SessionHeader& header, const std::vector<int32_t>& layers, const SessionSpec& spec);

}  // namespace gdn
