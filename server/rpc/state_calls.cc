// CheckpointSession, ListCheckpoints, DeleteCheckpoint, RestoreCheckpoint, PrefetchSessions.
#include <google/protobuf/util/time_util.h>

#include <utility>

#include <spdlog/spdlog.h>

#include "base/status_macros.h"
#include "base/task/status_macros.h"
#include "server/rpc/calls.h"
#include "server/rpc/session_calls.h"
#include "server/session/durable/recovery.h"
#include "server/validation/names.h"

namespace gdn {

using google::protobuf::util::TimeUtil;

Task<absl::Status> CheckpointSession(const SessionParts& parts, const Caller& caller,
                                     const v1::CheckpointSessionRequest& request,
                                     v1::CheckpointSessionResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.name()));
  GDN_CO_RETURN_IF_ERROR(CheckCheckpointId(request.checkpoint_id()));
  GDN_CO_ASSIGN_OR_RETURN(const CheckpointResult result,
                          co_await parts.states.checkpointer().Checkpoint(session, request.checkpoint_id(),
                                                                          caller.deadline, EpochOf(request)));
  v1::Checkpoint* checkpoint = response->mutable_checkpoint();
  checkpoint->set_checkpoint_id(request.checkpoint_id());
  checkpoint->set_epoch(result.epoch);
  *checkpoint->mutable_create_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(result.when));
  FillLayers(result.layers, checkpoint->mutable_layers());
  checkpoint->set_written_bytes(result.stored.written_bytes);
  checkpoint->set_incremental(result.stored.incremental);
  co_return absl::OkStatus();
}

Task<absl::Status> ListCheckpoints(const SessionParts& parts, const Caller& caller,
                                   const v1::ListCheckpointsRequest& request, v1::ListCheckpointsResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.name()));
  GDN_CO_ASSIGN_OR_RETURN(const std::vector<StoredSession> found, co_await parts.states.checkpointer().List(session));
  for (const StoredSession& stored : found) {
    v1::Checkpoint* checkpoint = response->add_checkpoints();
    checkpoint->set_checkpoint_id(stored.key.checkpoint);
    if (stored.bytes == 0) continue;  // damaged
    checkpoint->set_epoch(stored.header.epoch);
    *checkpoint->mutable_create_time() = TimeUtil::NanosecondsToTimestamp(absl::ToUnixNanos(stored.stored_at));
    FillLayers(LayersOf(stored, session->spec()), checkpoint->mutable_layers());
    checkpoint->set_written_bytes(stored.bytes);
    response->set_stored_bytes(response->stored_bytes() + stored.bytes);
  }
  co_return absl::OkStatus();
}

Task<absl::Status> DeleteCheckpoint(const SessionParts& parts, const Caller& caller,
                                    const v1::DeleteCheckpointRequest& request,
                                    v1::DeleteCheckpointResponse* /*response*/) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.name()));
  GDN_CO_RETURN_IF_ERROR(CheckNamedCheckpointId(request.checkpoint_id()));
  co_return co_await parts.states.checkpointer().Delete(session, request.checkpoint_id());
}

Task<absl::Status> RestoreCheckpoint(const SessionParts& parts, const Caller& caller,
                                     const v1::RestoreCheckpointRequest& request,
                                     v1::RestoreCheckpointResponse* response) {
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session, FindSession(parts.lookup, caller, request.name()));
  GDN_CO_RETURN_IF_ERROR(CheckCheckpointId(request.checkpoint_id()));
  GDN_CO_RETURN_IF_ERROR(co_await parts.states.checkpointer().Restore(session, request.checkpoint_id(), caller.deadline,
                                                                      EpochOf(request)));
  FillSession(parts.states, *session, response->mutable_session());
  spdlog::info("session restored id={} epoch={}{}", session->id(), session->epoch(), TraceForLog(caller.trace));
  co_return absl::OkStatus();
}

absl::Status PrefetchSessions(const SessionParts& parts, const Caller& caller,
                              const v1::PrefetchSessionsRequest& request, v1::PrefetchSessionsResponse* response) {
  GDN_RETURN_IF_ERROR(CheckBatchSize("names", request.names_size(), parts.limits));
  for (const std::string& name : request.names()) {
    GDN_RETURN_IF_ERROR(ParseSessionName(name).status());
    const auto session = FindSession(parts.lookup, caller, name);
    if (!session.ok()) continue;
    if (parts.states.residency().Prefetch(*session)) {
      response->set_started(response->started() + 1);
    } else {
      response->set_resident(response->resident() + 1);
    }
  }
  return absl::OkStatus();
}

}  // namespace gdn
