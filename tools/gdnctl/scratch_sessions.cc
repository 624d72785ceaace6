#include "tools/gdnctl/scratch_sessions.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr absl::Duration kDeleteTimeout = absl::Seconds(5);
// A step that was cancelled may still hold its session for a moment.
constexpr int kDeleteAttempts = 40;
constexpr absl::Duration kDeletePause = absl::Milliseconds(50);

}  // namespace

ScratchSessions::ScratchSessions(Client& client, std::string model)
    : client_(client), model_(std::move(model)), affinity_(StrCat("gdnctl-", RandomId().substr(0, 12))) {}

ScratchSessions::~ScratchSessions() { (void)DeleteAll(); }

absl::StatusOr<std::vector<std::string>> ScratchSessions::Create(std::string_view purpose, int64_t count) {
  std::vector<std::string> created;
  for (int64_t i = 0; i < count; ++i) {
    v1::CreateSessionRequest request;
    request.set_session_id(StrCat(affinity_, "-", purpose, "-", i));
    request.set_model(model_);
    request.set_affinity(affinity_);
    // Noted before the call: one that seems to fail, by a deadline say, may still have made the session.
    names_.push_back(StrCat("sessions/", request.session_id()));
    GDN_ASSIGN_OR_RETURN(const v1::Session session,
                         client_.CreateSession(request, {.timeout = {}, .affinity = affinity_}));
    created.push_back(session.name());
  }
  return created;
}

absl::Status ScratchSessions::DeleteAll() {
  absl::Status first;
  for (const std::string& name : std::exchange(names_, {})) {
    absl::Status status;
    for (int attempt = 0; attempt < kDeleteAttempts; ++attempt) {
      status = client_.DeleteSession(name, {.timeout = kDeleteTimeout, .affinity = affinity_});
      if (ErrorReason(status) != reason::kSessionBusy) break;
      absl::SleepFor(kDeletePause);
    }
    if (!absl::IsNotFound(status)) first.Update(status);
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) break;  // the server is gone: so are they
  }
  return first;
}

}  // namespace gdn
