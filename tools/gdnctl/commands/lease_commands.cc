// gdnctl leases: list, end.

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/print.h"

namespace gdn {
namespace {

std::string SecondsText(const google::protobuf::Duration& duration) {
  return absl::FormatDuration(absl::Seconds(duration.seconds()) + absl::Milliseconds(duration.nanos() / 1'000'000));
}

absl::StatusOr<int> RunLeases(const std::vector<std::string>&) {
  GDN_ASSIGN_OR_RETURN(const std::vector<v1::Lease> leases, ConnectByFlags()->ListLeases());
  v1::ListLeasesResponse all;
  all.mutable_leases()->Add(leases.begin(), leases.end());
  return Show(all, [&] {
    absl::PrintF("%-44s %10s %10s %8s\n", "lease", "grace", "time left", "sessions");
    for (const v1::Lease& lease : leases) {
      absl::PrintF("%-44s %10s %10s %8d\n", lease.name(), SecondsText(lease.grace()), SecondsText(lease.time_left()),
                   lease.sessions());
    }
  });
}

absl::StatusOr<int> RunEndLeases(const std::vector<std::string>& ids) {
  if (ids.empty()) return UsageError("which lease? An id is needed");
  const auto client = ConnectByFlags();
  for (const std::string& id : ids) {
    GDN_ASSIGN_OR_RETURN(const std::string name, ToLeaseName(id));
    GDN_ASSIGN_OR_RETURN(const int64_t ended, client->EndLease(name));
    absl::PrintF("ended %s and its %d sessions\n", name, ended);
  }
  return kExitOk;
}

}  // namespace

std::vector<Command> LeaseCommands() {
  constexpr std::string_view kSummary = "List your leases on this server, with their sessions";
  constexpr std::string_view kDetails =
      "A lease's sessions are deleted when its client has shown no sign of life for the lease's grace.\n";
  return {{.name = "leases", .summary = kSummary, .details = kDetails, .flags = {"json"}, .run = RunLeases},
          {.name = "leases list", .summary = kSummary, .details = kDetails, .flags = {"json"}, .run = RunLeases},
          {.name = "leases end",
           .arguments = "ID [ID ...]",
           .summary = "End leases and delete their sessions now",
           .details = "Example: gdnctl leases end engine-1\n",
           .run = RunEndLeases}};
}

}  // namespace gdn
