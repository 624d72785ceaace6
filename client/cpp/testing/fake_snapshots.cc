// The snapshots of a FakeGdnService.
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/testing/fake_gdn_service.h"
#include "client/cpp/testing/server_error.h"
#include "server/validation/names.h"

namespace gdn {

int64_t FakeGdnService::SnapshotLossMark() const {
  if (snapshots_.empty() && lost_snapshots_.empty()) return 0;
  return first_loss_mark_ + static_cast<int64_t>(lost_snapshots_.size());
}

void FakeGdnService::EvictSnapshot(const std::string& key) {
  absl::MutexLock lock(&mu_);
  if (snapshots_.erase(key) > 0) lost_snapshots_.push_back(key);
}

absl::StatusOr<const FakeGdnService::Session*> FakeGdnService::FindSnapshot(const std::string& key) {
  GDN_RETURN_IF_ERROR(CheckSnapshotKey(key));
  const auto found = snapshots_.find(key);
  if (found != snapshots_.end()) return &found->second;
  return MakeError(absl::StatusCode::kNotFound, reason::kSnapshotNotFound,
                   StrCat("there is no snapshot with the key '", key, "'"), {{"snapshot", key}});
}

void FakeGdnService::DescribeSnapshot(const Session& snapshot, v1::Snapshot* out) {
  v1::Session session;
  Describe(snapshot, &session);
  out->set_key(snapshot.id);
  out->set_model(session.model());
  out->mutable_layers()->Swap(session.mutable_layers());
  out->set_tier(session.tier());
}

absl::Status FakeGdnService::TakeSnapshot(const v1::SnapshotSessionRequest& request, v1::Snapshot* out) {
  GDN_RETURN_IF_ERROR(CheckSnapshotKey(request.key()));
  GDN_ASSIGN_OR_RETURN(const Session* const session, Find(request.session()));
  v1::SnapshotSessionRequest identity = request;
  identity.clear_session_epoch();
  if (const auto taken = snapshots_.find(request.key()); taken != snapshots_.end()) {
    if (taken->second.create != identity.SerializeAsString()) {
      return MakeError(absl::StatusCode::kAlreadyExists, reason::kSnapshotExists,
                       StrCat("another request made the snapshot '", request.key(), "'"),
                       {{"snapshot", request.key()}, {"session", request.session()}});
    }
    DescribeSnapshot(taken->second, out);
    return absl::OkStatus();
  }
  GDN_RETURN_IF_ERROR(session->unusable);
  GDN_RETURN_IF_ERROR(CheckEpochOf(*session, request));
  for (const auto& [index, layer] : session->now.layers) {
    if (!request.has_expected_token_count() || layer.toy.token_count == request.expected_token_count()) continue;
    return TokenCountMismatch(session->id, index, layer.toy.token_count, request.expected_token_count());
  }
  Session snapshot{.id = request.key(), .create = identity.SerializeAsString()};
  for (const auto& [index, layer] : session->now.layers) snapshot.now.layers[index].toy = layer.toy;
  DescribeSnapshot(snapshots_.emplace(request.key(), std::move(snapshot)).first->second, out);
  return absl::OkStatus();
}

grpc::Status FakeGdnService::SnapshotSession(Context*, const v1::SnapshotSessionRequest* request,
                                             v1::SnapshotSessionResponse* response) {
  return Call("SnapshotSession", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    GDN_RETURN_IF_ERROR(TakeSnapshot(*request, response->mutable_snapshot()));
    response->set_snapshot_loss_mark(SnapshotLossMark());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::SnapshotSessions(Context*, const v1::SnapshotSessionsRequest* request,
                                              v1::SnapshotSessionsResponse* response) {
  return Call("SnapshotSessions", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    for (const v1::SnapshotSessionRequest& one : request->requests()) {
      v1::SnapshotResult* const result = response->add_results();
      const absl::Status status = TakeSnapshot(one, result->mutable_snapshot());
      if (!status.ok()) *result->mutable_error() = ServerRpcError(status);
    }
    response->set_snapshot_loss_mark(SnapshotLossMark());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::ListSnapshots(Context*, const v1::ListSnapshotsRequest* request,
                                           v1::ListSnapshotsResponse* response) {
  return Call("ListSnapshots", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    for (const auto& [key, snapshot] : snapshots_) DescribeSnapshot(snapshot, response->add_snapshots());
    const int64_t after = request->lost_after();
    const bool is_known = after >= first_loss_mark_ && after <= SnapshotLossMark();
    for (size_t i = 0; i < lost_snapshots_.size(); ++i) {
      const int64_t mark = first_loss_mark_ + static_cast<int64_t>(i) + 1;
      if (is_known && mark <= after) continue;
      v1::LostSnapshot* const lost = response->add_lost();
      lost->set_key(lost_snapshots_[i]);
      lost->set_cause(v1::SNAPSHOT_LOSS_CAUSE_EVICTED);
      lost->set_mark(mark);
    }
    response->set_lost_incomplete(after != 0 && !is_known);
    response->set_snapshot_loss_mark(SnapshotLossMark());
    return absl::OkStatus();
  });
}

grpc::Status FakeGdnService::DeleteSnapshots(Context*, const v1::DeleteSnapshotsRequest* request,
                                             v1::DeleteSnapshotsResponse* response) {
  return Call("DeleteSnapshots", [&](auto) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) -> absl::Status {
    for (const std::string& key : request->keys()) {
      const absl::Status found = FindSnapshot(key).status();
      *response->add_statuses() = ServerRpcError(found);
      snapshots_.erase(key);
    }
    return absl::OkStatus();
  });
}

}  // namespace gdn
