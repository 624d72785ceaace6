// Statuses that carry a machine-readable reason and metadata in addition to their message.
//
// This is the process-internal form of google.rpc.ErrorInfo. The server converts it to that message on the wire
// (server/rpc/transport/rpc_status.cc) and the client converts it back, so the reason reaches the caller.
// Thread safety: free functions, no shared state. Ownership: everything is copied into the status.
//
//   return MakeError(absl::StatusCode::kNotFound, reason::kSessionNotFound,
//                    absl::StrCat("no session named '", name, "'"), {{"session", name}});
//   if (ErrorReason(status) == reason::kSessionBusy) { ... }
#pragma once

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"

namespace gdn {

// The reasons. Each equals a value of gdn.v1.ErrorReason without its prefix; errors.proto documents them.
namespace reason {
inline constexpr std::string_view kInvalidName = "INVALID_NAME";
inline constexpr std::string_view kInvalidSpec = "INVALID_SPEC";
inline constexpr std::string_view kInvalidTensorShape = "INVALID_TENSOR_SHAPE";
inline constexpr std::string_view kInvalidTensorDtype = "INVALID_TENSOR_DTYPE";
inline constexpr std::string_view kInvalidTensorData = "INVALID_TENSOR_DATA";
inline constexpr std::string_view kShapeOverflow = "SHAPE_OVERFLOW";
inline constexpr std::string_view kNonFiniteInput = "NON_FINITE_INPUT";
inline constexpr std::string_view kValueOutOfRange = "VALUE_OUT_OF_RANGE";
inline constexpr std::string_view kInvalidLengths = "INVALID_LENGTHS";
inline constexpr std::string_view kInputMissing = "INPUT_MISSING";
inline constexpr std::string_view kInputKindMismatch = "INPUT_KIND_MISMATCH";
inline constexpr std::string_view kInputNeedsModel = "INPUT_NEEDS_MODEL";
inline constexpr std::string_view kModelNotFound = "MODEL_NOT_FOUND";
inline constexpr std::string_view kSessionNotFound = "SESSION_NOT_FOUND";
inline constexpr std::string_view kSessionExists = "SESSION_EXISTS";
inline constexpr std::string_view kSessionBusy = "SESSION_BUSY";
inline constexpr std::string_view kLayerNotGdn = "LAYER_NOT_GDN";
inline constexpr std::string_view kDuplicateSession = "DUPLICATE_SESSION";
inline constexpr std::string_view kMixedSessions = "MIXED_SESSIONS";
inline constexpr std::string_view kBatchTooLarge = "BATCH_TOO_LARGE";
inline constexpr std::string_view kTooManyTokens = "TOO_MANY_TOKENS";
inline constexpr std::string_view kMessageTooLarge = "MESSAGE_TOO_LARGE";
inline constexpr std::string_view kTokenCountMismatch = "TOKEN_COUNT_MISMATCH";
inline constexpr std::string_view kRequestIdReused = "REQUEST_ID_REUSED";
inline constexpr std::string_view kReplyTooLargeToStore = "REPLY_TOO_LARGE_TO_STORE";
inline constexpr std::string_view kReplyDropped = "REPLY_DROPPED";
inline constexpr std::string_view kPreviousSegmentFailed = "PREVIOUS_SEGMENT_FAILED";
inline constexpr std::string_view kStateBudgetExhausted = "STATE_BUDGET_EXHAUSTED";
inline constexpr std::string_view kBytesExhausted = "BYTES_EXHAUSTED";
inline constexpr std::string_view kQueueFull = "QUEUE_FULL";
inline constexpr std::string_view kInvalidPageToken = "INVALID_PAGE_TOKEN";
inline constexpr std::string_view kInvalidStateFile = "INVALID_STATE_FILE";
inline constexpr std::string_view kStateMismatch = "STATE_MISMATCH";
inline constexpr std::string_view kServerDraining = "SERVER_DRAINING";
inline constexpr std::string_view kCallCancelled = "CALL_CANCELLED";
inline constexpr std::string_view kDeadlineExceeded = "DEADLINE_EXCEEDED";
inline constexpr std::string_view kInternal = "INTERNAL";
inline constexpr std::string_view kDeviceFailed = "DEVICE_FAILED";
inline constexpr std::string_view kDeviceUnsupported = "DEVICE_UNSUPPORTED";
inline constexpr std::string_view kEpochMismatch = "EPOCH_MISMATCH";
inline constexpr std::string_view kDraftPending = "DRAFT_PENDING";
inline constexpr std::string_view kNoDurableTier = "NO_DURABLE_TIER";
inline constexpr std::string_view kCheckpointNotFound = "CHECKPOINT_NOT_FOUND";
inline constexpr std::string_view kTierUnavailable = "TIER_UNAVAILABLE";
inline constexpr std::string_view kStateRolledBack = "STATE_ROLLED_BACK";
inline constexpr std::string_view kStatesTakenOver = "STATES_TAKEN_OVER";
inline constexpr std::string_view kSharedMemoryNotOffered = "SHARED_MEMORY_NOT_OFFERED";
inline constexpr std::string_view kSharedMemoryExhausted = "SHARED_MEMORY_EXHAUSTED";
inline constexpr std::string_view kSharedRegionNotFound = "SHARED_REGION_NOT_FOUND";
inline constexpr std::string_view kInvalidSharedRange = "INVALID_SHARED_RANGE";
inline constexpr std::string_view kSharedMemoryTruncated = "SHARED_MEMORY_TRUNCATED";
inline constexpr std::string_view kMalformedMessage = "MALFORMED_MESSAGE";
inline constexpr std::string_view kCountLimit = "COUNT_LIMIT";
inline constexpr std::string_view kTooManyCheckpoints = "TOO_MANY_CHECKPOINTS";
inline constexpr std::string_view kQuotaExceeded = "QUOTA_EXCEEDED";
inline constexpr std::string_view kSessionElsewhere = "SESSION_ELSEWHERE";
inline constexpr std::string_view kSessionMoved = "SESSION_MOVED";
inline constexpr std::string_view kNodeLeaseLapsed = "NODE_LEASE_LAPSED";
inline constexpr std::string_view kPrefixMismatch = "PREFIX_MISMATCH";
inline constexpr std::string_view kStateLost = "STATE_LOST";
inline constexpr std::string_view kLeaseNotFound = "LEASE_NOT_FOUND";
inline constexpr std::string_view kLeaseExists = "LEASE_EXISTS";
inline constexpr std::string_view kTooManyLeases = "TOO_MANY_LEASES";
inline constexpr std::string_view kSnapshotNotFound = "SNAPSHOT_NOT_FOUND";
inline constexpr std::string_view kSnapshotExists = "SNAPSHOT_EXISTS";
}  // namespace reason

using ErrorMetadataMap = std::map<std::string, std::string>;

// Makes a status with a reason; `code` must not be kOk. If `metadata` has a key twice, the later value counts.
absl::Status MakeError(absl::StatusCode code, std::string_view reason, std::string_view message,
                       std::initializer_list<std::pair<std::string_view, std::string>> metadata = {});

// Returns `status` with one more metadata entry (an existing key is replaced). An OK status is returned unchanged.
absl::Status WithMetadata(absl::Status status, std::string_view key, std::string_view value);

// Returns `status` with `prefix` and ": " before its message. Code, reason and metadata are kept. An OK status is
// returned unchanged.
absl::Status WithPrefix(const absl::Status& status, std::string_view prefix);

// Returns the reason, or "" if the status has none.
std::string ErrorReason(const absl::Status& status);

// Returns the metadata, or an empty map if the status has none.
ErrorMetadataMap ErrorMetadata(const absl::Status& status);

}  // namespace gdn
