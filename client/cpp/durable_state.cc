// The part of a DurableSession that uses the state as a whole: checkpoints, exports, forks, restores.
//
// Each request names the epoch, and what comes back is compared with the token counts that this side knows: the server
// may be too old to know the field, or have gone back to an older state in the same epoch.
#include "client/cpp/durable_session.h"

#include <string>
#include <utility>

#include "base/error.h"
#include "base/random_id.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/reply_epoch.h"

namespace gdn {
namespace {

constexpr std::string_view kSessionPrefix = "sessions/";

SeenByLayer SeenOf(const google::protobuf::RepeatedPtrField<v1::LayerState>& layers) {
  SeenByLayer seen;
  for (const v1::LayerState& layer : layers) {
    seen[layer.layer()] = {.tokens = layer.token_count(), .draft = layer.draft_length()};
  }
  return seen;
}

std::string TextOf(const SeenTokens& seen) {
  return StrCat(seen.tokens, " tokens", seen.draft == 0 ? "" : StrCat(" and a draft of ", seen.draft));
}

}  // namespace

absl::Status DurableSession::CheckRestored() const {
  if (!restoring_) return absl::OkStatus();
  return absl::FailedPreconditionError(AbslView(
      StrCat("a restore of ", name(), " ended without an answer and may have been applied; restore it again")));
}

absl::Status DurableSession::CheckIdle(std::string_view call) const {
  GDN_RETURN_IF_ERROR(CheckRestored());
  if (!in_flight_.has_value()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      AbslView(StrCat("the call before on ", name(), " ended without an answer; repeat it before ", call)));
}

absl::Status DurableSession::CheckSeen(const SeenByLayer& seen, std::string_view what) const {
  for (const auto& [index, layer] : layers_) {
    const SeenTokens expected = {.tokens = layer.token_count(),
                                 .draft = layer.draft().has_value() ? StepTokens(layer.draft()->request) : 0};
    const auto there = seen.find(index);
    const SeenTokens found = there == seen.end() ? SeenTokens() : there->second;
    if (found == expected) continue;
    return MakeError(absl::StatusCode::kAborted, reason::kTokenCountMismatch,
                     StrCat(what, " has ", TextOf(found), " of layer ", index, ", expected ", TextOf(expected)),
                     {{"session", name()},
                      {"layer", StrCat(index)},
                      {"token_count", StrCat(found.tokens)},
                      {"expected", StrCat(expected.tokens)}});
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Checkpoint> DurableSession::TryCheckpoint(const std::string& checkpoint_id, const Backoff& backoff) {
  v1::CheckpointSessionRequest request;
  request.set_name(name());
  request.set_checkpoint_id(checkpoint_id);
  request.set_session_epoch(epoch_);
  GDN_ASSIGN_OR_RETURN(v1::Checkpoint made, client_.CheckpointSession(request, TryOptions(backoff)));
  GDN_RETURN_IF_ERROR(CheckSeen(SeenOf(made.layers()), StrCat("the checkpoint of ", name())));
  if (!checkpoint_id.empty()) return made;  // a crash does not come back to it, so the inputs are still needed
  for (const v1::LayerState& state : made.layers()) {
    const auto found = layers_.find(state.layer());
    if (found == layers_.end()) continue;
    found->second.Trim(state.token_count());
    checkpointed_counts_[state.layer()] = state.token_count();
  }
  return made;
}

absl::StatusOr<v1::Checkpoint> DurableSession::Checkpoint(const std::string& checkpoint_id) {
  GDN_RETURN_IF_ERROR(CheckIdle("a checkpoint"));
  Backoff backoff = NewBackoff();
  v1::Checkpoint made;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(made, TryCheckpoint(checkpoint_id, backoff));
    return absl::OkStatus();
  }));
  return made;
}

absl::StatusOr<std::string> DurableSession::TryExport(v1::ExportStateRequest& request, const Backoff& backoff) {
  request.set_session_epoch(epoch_);
  GDN_ASSIGN_OR_RETURN(std::string file, client_.ExportState(request, TryOptions(backoff)));
  GDN_ASSIGN_OR_RETURN(const StateFileOrigin origin, ReadStateFileOrigin(file));
  GDN_RETURN_IF_ERROR(CheckSeen(origin.seen, StrCat("the state file of ", name())));
  return file;
}

absl::StatusOr<std::string> DurableSession::ExportState(v1::ExportStateRequest request) {
  GDN_RETURN_IF_ERROR(CheckIdle("an export"));
  request.set_name(name());
  Backoff backoff = NewBackoff();
  std::string file;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(file, TryExport(request, backoff));
    return absl::OkStatus();
  }));
  return file;
}

absl::StatusOr<std::vector<v1::Session>> DurableSession::TryFork(v1::ForkSessionRequest& request,
                                                                 const std::set<std::string>& drawn,
                                                                 const Backoff& backoff) {
  request.set_session_epoch(epoch_);
  GDN_ASSIGN_OR_RETURN(std::vector<v1::Session> children, client_.ForkSession(request, TryOptions(backoff)));
  if (static_cast<int>(children.size()) != request.session_ids_size()) {
    return MakeError(
        absl::StatusCode::kInternal, reason::kInternal,
        StrCat("a fork into ", request.session_ids_size(), " sessions was answered with ", children.size()));
  }
  absl::Status other;
  for (const v1::Session& child : children) {
    const absl::Status same = CheckSeen(SeenOf(child.layers()), StrCat("the fork ", child.name()));
    if (same.ok()) continue;
    if (!drawn.contains(child.name())) {
      return MakeError(absl::StatusCode::kAlreadyExists, reason::kSessionExists,
                       StrCat(same.message(),
                              ": an earlier fork has made it, or a server that is too old to know "
                              "session_epoch; delete it, or fork under another id"),
                       {{"session", child.name()}});
    }
    other = same;
  }
  if (other.ok()) return children;
  // Of the state that a crash has left. The steps that it lacks come back first; the next try makes the children again.
  for (const std::string& child : drawn) {
    const absl::Status deleted = client_.DeleteSession(child, TryOptions(backoff));
    if (!deleted.ok() && ErrorReason(deleted) != reason::kSessionNotFound) return deleted;
  }
  return other;
}

std::unique_ptr<DurableSession> DurableSession::ChildOf(v1::Session child) const {
  std::unique_ptr<DurableSession> fork(new DurableSession(client_, options_));
  if (create_.has_value()) {
    fork->create_ = create_;
    fork->create_->set_session_id(child.name().substr(kSessionPrefix.size()));
    fork->create_->set_affinity(session_.affinity());  // a child has its parent's
  }
  fork->initial_counts_ = initial_counts_;
  fork->prefix_tokens_ = prefix_tokens_;
  fork->layers_ = layers_;
  fork->numerics_id_ = numerics_id_;
  fork->numerics_changed_ = numerics_changed_;
  for (const v1::LayerState& layer : child.layers()) {
    fork->checkpointed_counts_[layer.layer()] = layer.durable_token_count();
  }
  fork->epoch_ = child.epoch();
  fork->session_ = std::move(child);
  return fork;
}

absl::StatusOr<std::vector<std::unique_ptr<DurableSession>>> DurableSession::Fork(std::vector<std::string> ids) {
  GDN_RETURN_IF_ERROR(CheckIdle("a fork"));
  v1::ForkSessionRequest request;
  request.set_name(name());
  std::set<std::string> drawn;
  for (std::string& id : ids) {
    // Drawn here, so that a lost reply does not leave children that nobody knows.
    if (id.empty()) drawn.insert(StrCat(kSessionPrefix, id = RandomId()));
    request.add_session_ids(std::move(id));
  }
  Backoff backoff = NewBackoff();
  std::vector<v1::Session> children;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    GDN_ASSIGN_OR_RETURN(children, TryFork(request, drawn, backoff));
    return absl::OkStatus();
  }));
  std::vector<std::unique_ptr<DurableSession>> forks;
  for (v1::Session& child : children) forks.push_back(ChildOf(std::move(child)));
  return forks;
}

absl::StatusOr<v1::KeepPrefixResponse> DurableSession::KeepPrefix(const v1::PromptPrefix& prefix) {
  GDN_RETURN_IF_ERROR(CheckIdle("a prefix is kept"));
  v1::KeepPrefixRequest request;
  request.set_name(name());
  *request.mutable_prefix() = prefix;
  Backoff backoff = NewBackoff();
  v1::KeepPrefixResponse kept;
  GDN_RETURN_IF_ERROR(Recovered(backoff, [&]() -> absl::Status {
    request.set_session_epoch(epoch_);
    GDN_ASSIGN_OR_RETURN(kept, client_.KeepPrefix(request, TryOptions(backoff)));
    return absl::OkStatus();
  }));
  return kept;
}

absl::Status DurableSession::TryRestore(v1::RestoreCheckpointRequest& request, v1::Session* restored,
                                        const Backoff& backoff) {
  absl::StatusOr<v1::Session> back = client_.RestoreCheckpoint(request, TryOptions(backoff));
  if (ErrorReason(back.status()) == reason::kEpochMismatch) {
    // After a crash, or a restore whose reply was lost: in both cases the state is given up. This side
    // takes over the epoch only with that state, so that no other call takes what is there for the state it knows.
    const absl::StatusOr<v1::Session> found = client_.GetSession(name(), TryOptions(backoff));
    if (ErrorReason(found.status()) == reason::kSessionNotFound) restoring_ = false;
    GDN_RETURN_IF_ERROR(found.status());
    request.set_session_epoch(found->epoch());
    return absl::UnavailableError("the session is in another epoch");
  }
  // An answer with a reason says that this try was not taken; it says nothing of an earlier one.
  const bool unanswered = WorthAnotherTry(back.status()) && ErrorReason(back.status()).empty();
  restoring_ = restoring_ || back.ok() || unanswered;
  // With the session goes what an earlier try may have done.
  if (ErrorReason(back.status()) == reason::kSessionNotFound) restoring_ = false;
  GDN_RETURN_IF_ERROR(back.status());
  *restored = *std::move(back);
  epoch_ = restored->epoch();
  request.set_session_epoch(epoch_);
  const absl::Status dropped = DropDrafts(restored, backoff);
  // By a crash: it has taken the session elsewhere again.
  return SessionHasMoved(dropped) ? absl::UnavailableError(dropped.message()) : dropped;
}

absl::StatusOr<v1::Session> DurableSession::Restore(const std::string& checkpoint_id) {
  if (!restoring_) GDN_RETURN_IF_ERROR(CheckIdle("a restore"));
  v1::RestoreCheckpointRequest request;
  request.set_name(name());
  request.set_checkpoint_id(checkpoint_id);
  request.set_session_epoch(epoch_);
  Backoff backoff = NewBackoff();
  v1::Session restored;
  for (;;) {
    const absl::Status status = TryRestore(request, &restored, backoff);
    if (status.ok()) break;
    if (!WorthAnotherTry(status)) return status;
    GDN_RETURN_IF_ERROR(backoff.Wait(status));
    ++stats_.retries;
  }
  restoring_ = false;
  for (const v1::LayerState& state : restored.layers()) {
    const auto found = layers_.find(state.layer());
    if (!checkpoint_id.empty() || found == layers_.end() || state.token_count() >= found->second.begin()) continue;
    astray_ = true;
    return MakeError(absl::StatusCode::kDataLoss, reason::kEpochMismatch,
                     StrCat(name(), " is back at token ", state.token_count(), " of layer ", state.layer(),
                            ", and its newest checkpoint had ", found->second.begin(),
                            ": the server's store was set back. Where the inputs before are at hand, go on with "
                            "DurableSession::Attach; else prefill a new session"),
                     {{"session", name()}, {"layer", StrCat(state.layer())}});
  }
  astray_ = rolled_back_ = needs_replay_ = false;
  for (const v1::LayerState& state : restored.layers()) {
    layers_.insert_or_assign(state.layer(), LayerSteps(state.layer(), state.token_count()));
    checkpointed_counts_[state.layer()] = state.token_count();
  }
  return restored;
}

}  // namespace gdn
