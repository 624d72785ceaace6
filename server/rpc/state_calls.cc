// CheckpointSession, ListCheckpoints, DeleteCheckpoint, RestoreCheckpoint, PrefetchSessions.
#include <google/protobuf/util/time_util.h>

#include <utility>

#include <spdlog/spdlog.h>

#include "base/status_macros.h"
#include "server/rpc/calls.h"
#include "server/session/recovery.h"
#include "server/validation/names.h"

namespace gdn {

using google::protobuf::util::TimeUtil;

void CheckpointSession(const ServiceContext& context, const Caller& caller, const v1::CheckpointSessionRequest& request,
                       v1::CheckpointSessionResponse* response, CallDone done) {
  const auto session = FindSession(context, caller, request.name());
  if (!session.ok()) return done(session.status());
  if (absl::Status status = CheckCheckpointId(request.checkpoint_id()); !status.ok()) return done(std::move(status));
  context.checkpointer.Checkpoint(
      *session, request.checkpoint_id(),
      [response, id = request.checkpoint_id(), done = std::move(done)](absl::StatusOr<CheckpointResult> result) {
        if (!result.ok()) return done(result.status());
        v1::Checkpoint* checkpoint = response->mutable_checkpoint();
        checkpoint->set_checkpoint_id(id);
        checkpoint->set_epoch(result->epoch);
        *checkpoint->mutable_create_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(result->when));
        FillLayers(result->layers, checkpoint->mutable_layers());
        checkpoint->set_written_bytes(result->stored.written_bytes);
        checkpoint->set_incremental(result->stored.incremental);
        done(absl::OkStatus());
      },
      caller.limit, EpochOf(request));
}

void ListCheckpoints(const ServiceContext& context, const Caller& caller, const v1::ListCheckpointsRequest& request,
                     v1::ListCheckpointsResponse* response, CallDone done) {
  const auto session = FindSession(context, caller, request.name());
  if (!session.ok()) return done(session.status());
  context.checkpointer.List(*session, [session = *session, response, done = std::move(done)](
                                          const absl::StatusOr<std::vector<StoredSession>>& found) {
    if (!found.ok()) return done(found.status());
    for (const StoredSession& stored : *found) {
      v1::Checkpoint* checkpoint = response->add_checkpoints();
      checkpoint->set_checkpoint_id(stored.key.checkpoint);
      if (stored.bytes == 0) continue;  // damaged
      checkpoint->set_epoch(stored.header.epoch);
      *checkpoint->mutable_create_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(stored.stored_at));
      FillLayers(LayersOf(stored, session->spec()), checkpoint->mutable_layers());
      checkpoint->set_written_bytes(stored.bytes);
      response->set_stored_bytes(response->stored_bytes() + stored.bytes);
    }
    done(absl::OkStatus());
  });
}

void DeleteCheckpoint(const ServiceContext& context, const Caller& caller, const v1::DeleteCheckpointRequest& request,
                      v1::DeleteCheckpointResponse* /*response*/, CallDone done) {
  const auto session = FindSession(context, caller, request.name());
  if (!session.ok()) return done(session.status());
  if (absl::Status status = CheckNamedCheckpointId(request.checkpoint_id()); !status.ok()) {
    return done(std::move(status));
  }
  context.checkpointer.Delete(*session, request.checkpoint_id(), std::move(done));
}

void RestoreCheckpoint(const ServiceContext& context, const Caller& caller, const v1::RestoreCheckpointRequest& request,
                       v1::RestoreCheckpointResponse* response, CallDone done) {
  auto session = FindSession(context, caller, request.name());
  if (!session.ok()) return done(session.status());
  if (absl::Status status = CheckCheckpointId(request.checkpoint_id()); !status.ok()) return done(std::move(status));
  const auto restored = [&context, session = *session, response, trace = caller.trace,
                         done = std::move(done)](absl::Status status) {
    if (status.ok()) {
      FillSession(context, *session, response->mutable_session());
      spdlog::info("session restored id={} epoch={}{}", session->id(), session->epoch(), TraceForLog(trace));
    }
    done(std::move(status));
  };
  context.checkpointer.Restore(*session, request.checkpoint_id(), restored, caller.limit, EpochOf(request));
}

absl::Status PrefetchSessions(const ServiceContext& context, const Caller& caller,
                              const v1::PrefetchSessionsRequest& request, v1::PrefetchSessionsResponse* response) {
  GDN_RETURN_IF_ERROR(CheckBatchSize(request.names_size(), context.limits));
  for (const std::string& name : request.names()) {
    GDN_RETURN_IF_ERROR(ParseSessionName(name).status());
    const auto session = FindSession(context, caller, name);
    if (!session.ok()) continue;
    if (context.residency.Prefetch(*session)) {
      response->set_started(response->started() + 1);
    } else {
      response->set_resident(response->resident() + 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
