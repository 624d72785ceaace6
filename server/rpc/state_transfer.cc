#include "server/rpc/state_transfer.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/rpc/principal.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/session_calls.h"
#include "server/validation/names.h"

namespace gdn {
namespace {

constexpr size_t kPieceBytes = size_t{1} << 20;

class ExportReactor final : public grpc::ServerWriteReactor<v1::ExportStateResponse> {
 public:
  ExportReactor(const ServiceContext& context, grpc::CallbackServerContext* call,
                const v1::ExportStateRequest* request) {
    auto session = FindSession(context, PrincipalOf(*call), request->name());
    auto lease = session.ok() ? (*session)->LockAll() : session.status();
    if (!lease.ok()) {
      Finish(ToGrpcStatus(lease.status()));
      return;
    }
    auto locked = std::make_shared<SessionLease>(*std::move(lease));
    auto run = [this, locked, recurrent = request->include_recurrent_state()](Backend& backend) {
      auto file = ExportSession(backend, *locked, recurrent);
      *locked = SessionLease();  // steps may go on while the copy is sent
      if (file.ok()) file_ = *std::move(file);
      return file.status();
    };
    context.batcher.Post(std::move(run), [this](const absl::Status& status) {
      if (!status.ok()) return Finish(ToGrpcStatus(status));
      SendNext();
    });
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the client has gone"));
    if (sent_ == file_.size()) return Finish(grpc::Status::OK);
    SendNext();
  }
  void OnDone() override { delete this; }

 private:
  void SendNext() {
    const size_t bytes = std::min(kPieceBytes, file_.size() - sent_);
    piece_.set_data(file_.substr(sent_, bytes));
    piece_.set_offset(static_cast<int64_t>(sent_));
    piece_.set_total_bytes(static_cast<int64_t>(file_.size()));
    sent_ += bytes;
    StartWrite(&piece_);
  }

  std::string file_;
  size_t sent_ = 0;
  v1::ExportStateResponse piece_;
};

class ImportReactor final : public grpc::ServerReadReactor<v1::ImportStateRequest> {
 public:
  ImportReactor(const ServiceContext& context, grpc::CallbackServerContext* call, v1::ImportStateResponse* response)
      : context_(context), principal_(PrincipalOf(*call)), response_(response) {
    StartRead(&request_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) return Import();
    if (absl::Status status = Take(); !status.ok()) return Finish(ToGrpcStatus(status));
    StartRead(&request_);
  }
  void OnDone() override { delete this; }

 private:
  // Checks the target at once, so that a file for nobody is not sent in vain.
  absl::Status TakeTarget() {
    target_ = request_.target();
    GDN_RETURN_IF_ERROR(CheckSessionId(target_.session_id()));
    GDN_RETURN_IF_ERROR(CheckAffinity(target_.affinity()));
    switch (target_.spec_case()) {
      case v1::ImportStateRequest::Target::kModel: {
        GDN_ASSIGN_OR_RETURN(spec_, SpecOfModel(context_, target_.model()));
        break;
      }
      case v1::ImportStateRequest::Target::kOperator: {
        GDN_ASSIGN_OR_RETURN(spec_, SpecOfOperator(target_.operator_()));
        break;
      }
      default:
        return SpecMissing();
    }
    GDN_ASSIGN_OR_RETURN(const StateLayout layout, StateLayout::Make(spec_.dims, context_.limits.max_draft));
    // A file holds at most the slots, the folded states beside them, and a header.
    max_bytes_ = 2 * layout.slot_bytes() * static_cast<int64_t>(spec_.layers.size()) + (int64_t{1} << 20);
    return absl::OkStatus();
  }

  absl::Status Take() {
    if (!has_target_) {
      has_target_ = true;
      if (request_.has_target()) return TakeTarget();
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                       "the first message must carry target, the later ones data", {{"field", "target"}});
    }
    if (!request_.has_data()) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                       "target was sent already; every message after the first must carry data", {{"field", "data"}});
    }
    if (static_cast<int64_t>(file_.size() + request_.data().size()) > max_bytes_) {
      return MakeError(
          absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
          StrCat("the state file is larger than the ", max_bytes_, " bytes that the target's states can fill"),
          {{"expected", StrCat(max_bytes_)}});
    }
    file_ += request_.data();
    return absl::OkStatus();
  }

  void Import() {
    auto begin = [this]() -> absl::StatusOr<std::pair<SessionCreation, Snapshot>> {
      if (!has_target_) {
        return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                         "the stream was empty; send target, then the file's bytes", {{"field", "target"}});
      }
      GDN_ASSIGN_OR_RETURN(Snapshot snapshot, DecodeSnapshot(file_));
      GDN_RETURN_IF_ERROR(CheckSnapshotFits(snapshot, spec_));
      Hasher request;
      request.UpdateField("import");
      request.UpdateField(file_);
      GDN_ASSIGN_OR_RETURN(SessionCreation creation,
                           context_.sessions.Begin(principal_, target_.session_id(), std::move(spec_),
                                                   target_.affinity(), request.Finish()));
      return std::pair(std::move(creation), std::move(snapshot));
    };
    auto begun = begin();
    if (!begun.ok()) return Finish(ToGrpcStatus(begun.status()));
    auto& [creation, snapshot] = *begun;
    if (!creation.pending()) {
      return Finish(ToGrpcStatus(MakeError(absl::StatusCode::kAlreadyExists, reason::kSessionExists,
                                           StrCat(SessionName(target_.session_id()), " exists; choose another id"),
                                           {{"session", SessionName(target_.session_id())}})));
    }
    CreateFromSnapshot(context_, std::move(creation), std::move(snapshot), response_->mutable_session(),
                       [this](const absl::Status& status) { Finish(ToGrpcStatus(status)); });
  }

  const ServiceContext& context_;
  const std::string principal_;
  v1::ImportStateResponse* const response_;
  v1::ImportStateRequest request_;
  bool has_target_ = false;
  v1::ImportStateRequest::Target target_;
  SessionSpec spec_;
  int64_t max_bytes_ = 0;
  std::string file_;
};

}  // namespace

grpc::ServerWriteReactor<v1::ExportStateResponse>* NewExportReactor(const ServiceContext& context,
                                                                    grpc::CallbackServerContext* call,
                                                                    const v1::ExportStateRequest* request) {
  return new ExportReactor(context, call, request);
}

grpc::ServerReadReactor<v1::ImportStateRequest>* NewImportReactor(const ServiceContext& context,
                                                                  grpc::CallbackServerContext* call,
                                                                  v1::ImportStateResponse* response) {
  return new ImportReactor(context, call, response);
}

}  // namespace gdn
