// The part of a HistoryWorker that makes the calls in turn, and begins anew where a session may be lost.
#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "tests/soak/history_worker.h"

namespace gdn {

bool HistoryWorker::MayBeLost(const absl::Status& status, int64_t set_backs) const {
  if (world_.set_backs() == set_backs) return needs_copy_ && status.code() == absl::StatusCode::kDataLoss;
  const std::string reason = ErrorReason(status);
  return status.code() == absl::StatusCode::kDataLoss || reason == reason::kCheckpointNotFound ||
         reason == reason::kSessionNotFound;
}

void HistoryWorker::GiveAllUp() {
  for (const std::string& id : open_) {
    for (Client* client : {&world_.truth, &world_.tested}) {
      // A session that stays is in nobody's way.
      static_cast<void>(client->DeleteSession(StrCat("sessions/", id), {.timeout = absl::Seconds(1), .affinity = {}}));
    }
    world_.writer.Add(Line("truth", id, "end"));
    world_.writer.Add(Line("tested", id, "lost"));
  }
  open_.clear();
  first_.clear();
  needs_copy_ = false;
}

absl::Status HistoryWorker::CallOnTwins(Twins& twins, const std::string& call) {
  // A session that the last call has touched has met every loss before that one began.
  const int64_t met = std::exchange(set_backs_, world_.set_backs());
  while (!world_.over()) {
    const absl::Status status = TryCall(twins, call);
    if (!MayBeLost(status, met)) return WithPrefix(status, StrCat(options_.form, ", ", call, " first"));
    GiveAllUp();
    if (call.empty()) break;
    GDN_ASSIGN_OR_RETURN(twins, MakeWithPrompt("again"));
  }
  return absl::OkStatus();
}

absl::Status HistoryWorker::Run(int rounds) {
  for (int round = 0; round < rounds && !world_.over(); ++round) {
    set_backs_ = world_.set_backs();
    GDN_ASSIGN_OR_RETURN(Twins twins, MakeWithPrompt(StrCat("round-", round)));
    std::vector<std::string> calls = SoakCalls();
    for (size_t i = calls.size(); i > 1; --i) {
      std::swap(calls[i - 1], calls[static_cast<size_t>(random_.NextInt(0, static_cast<int>(i) - 1))]);
    }
    for (const std::string& call : calls) GDN_RETURN_IF_ERROR(CallOnTwins(twins, call));
    GDN_RETURN_IF_ERROR(CallOnTwins(twins, ""));
  }
  return absl::OkStatus();
}

}  // namespace gdn
