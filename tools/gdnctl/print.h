// Prints gdnctl's results: JSON with the API's field names, or text for people.
//
// Thread safety: free functions. Ownership: none.
//
//   GDN_RETURN_IF_ERROR(PrintJson(session));
//   absl::PrintF("%s\n", FormatBytes(67108864));  // "64.0 MiB"
#pragma once

#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cpp/client.h"
#include "google/protobuf/message.h"

namespace gdn {

// Prints one JSON document and a newline to stdout, with fields that have their default values. INTERNAL if the message
// cannot be printed as JSON.
absl::Status PrintJson(const google::protobuf::Message& message);

// Prints a command's result: as JSON with --json, else by calling show(). Returns kExitOk, or INTERNAL if the message
// cannot be printed as JSON.
absl::StatusOr<int> Show(const google::protobuf::Message& message, absl::FunctionRef<void()> show);

// Prints a session to stdout, for people, or with --json as JSON. INTERNAL if it cannot be printed as JSON.
absl::Status PrintSession(const v1::Session& session);

// Returns "512 B", "64.0 MiB", up to TiB.
std::string FormatBytes(int64_t bytes);
std::string FormatDims(const v1::LayerDims& dims);
std::string FormatHeads(const v1::HeadSlice& heads);                   // "0-15/32": value heads 0 to 15 of 32
std::string FormatTimestamp(const google::protobuf::Timestamp& time);  // "2026-01-31T12:00:00Z"
std::string FormatTier(v1::StateTier tier);                            // "device", "host", "disk", "redis"; else "-"
// Returns the session's model, such as "models/NAME"; for a bare operator "operator H=.. HV=.. K=.. V=.. x LAYERS", and
// " decay=per-channel" if its decays are.
std::string FormatSpec(const v1::Session& session);
// Returns "0..5, 9" for 0, 1, 2, 3, 4, 5, 9; "none" for no numbers.
std::string FormatRanges(absl::Span<const int32_t> ascending);

}  // namespace gdn
