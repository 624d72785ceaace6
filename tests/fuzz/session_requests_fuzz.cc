// Requests of snapshots and leases, and of sessions that name one: their names, keys and times, as the calls check them
// before anything is looked up. What is refused is refused in printable text. The first byte chooses the message.
#include <string>
#include <string_view>

#include "absl/time/time.h"
#include "base/name_rules.h"
#include "gdn/v1/lease.pb.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/snapshot.pb.h"
#include "gdn/v1/state.pb.h"
#include "google/protobuf/stubs/logging.h"
#include "server/validation/names.h"
#include "server/validation/session_spec.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

bool IsAccepted(const absl::Status& status) {
  fuzz::CheckRefusal(status);
  GDN_FUZZ_CHECK(IsPrintable(std::string(status.message()), std::string::npos), "an error with bytes of the client");
  return status.ok();
}

void CheckSession(std::string_view name) {
  const absl::StatusOr<std::string_view> id = ParseSessionName(name);
  if (!IsAccepted(id.status())) return;
  GDN_FUZZ_CHECK(SessionName(*id) == name, name);
  GDN_FUZZ_CHECK(IsStateId(*id) && !IsSnapshotId(*id), "a call that takes a session can name a snapshot");
}

void CheckKey(std::string_view key) {
  if (!IsAccepted(CheckSnapshotKey(key))) return;
  const std::string id = std::string(1, kSnapshotMark) + std::string(key);
  GDN_FUZZ_CHECK(IsStateId(id), "a snapshot that no tier can store");
  GDN_FUZZ_CHECK(!ParseSessionName(SessionName(id)).ok(), "a snapshot that is a session");
}

void CheckLease(std::string_view name) {
  const absl::StatusOr<std::string_view> id = ParseLeaseName(name);
  if (!IsAccepted(id.status())) return;
  GDN_FUZZ_CHECK(LeaseName(*id) == name && CheckLeaseId(*id).ok(), name);
}

void CheckSnapshot(const v1::SnapshotSessionRequest& request) {
  CheckSession(request.session());
  CheckKey(request.key());
}

void CheckOpening(const v1::OpenLeaseRequest& request) {
  if (IsAccepted(CheckLeaseId(request.lease_id())) && !request.lease_id().empty()) {
    CheckLease(LeaseName(request.lease_id()));
  }
  const absl::StatusOr<absl::Duration> grace = CheckGrace(request.has_grace(), request.grace());
  if (!IsAccepted(grace.status())) return;
  GDN_FUZZ_CHECK(*grace >= absl::Seconds(1) && *grace <= absl::Hours(24 * 7), absl::FormatDuration(*grace));
}

template <typename Request>
bool Parse(std::string_view bytes, Request& request) {
  return request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  // Protobuf would write a line for each text that is not UTF-8.
  [[maybe_unused]] static auto* const before = google::protobuf::SetLogHandler(nullptr);
  fuzz::Input input(data, size);
  const uint8_t message = input.Byte();
  const std::string_view bytes = input.Rest();
  switch (message % 7) {
    case 0:
      if (v1::SnapshotSessionsRequest request; Parse(bytes, request)) {
        for (const v1::SnapshotSessionRequest& one : request.requests()) CheckSnapshot(one);
      }
      break;
    case 1:
      if (v1::DeleteSnapshotsRequest request; Parse(bytes, request)) {
        for (const std::string& key : request.keys()) CheckKey(key);
      }
      break;
    case 2:
      if (v1::OpenLeaseRequest request; Parse(bytes, request)) CheckOpening(request);
      break;
    case 3:
      if (v1::RenewLeaseRequest request; Parse(bytes, request)) CheckLease(request.name());
      break;
    case 4:
      if (v1::CreateSessionRequest request; Parse(bytes, request)) {
        IsAccepted(CheckSessionId(request.session_id()));
        CheckKey(request.snapshot());
        CheckLease(request.lease());
        v1::CreateSessionRequest again;
        GDN_FUZZ_CHECK(Parse(request.SerializeAsString(), again), "a request that is not read again");
        GDN_FUZZ_CHECK(HashCreateRequest(request) == HashCreateRequest(again), "a retry that is another request");
      }
      break;
    case 5:
      if (v1::ForkSessionRequest request; Parse(bytes, request)) {
        CheckSession(request.name());
        CheckKey(request.snapshot());
        for (const std::string& id : request.session_ids()) IsAccepted(CheckSessionId(id));
      }
      break;
    default:
      CheckSession(bytes);
      CheckKey(bytes);
      CheckLease(bytes);
  }
  return 0;
}
