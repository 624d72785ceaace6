#include "client/cpp/state_transfer.h"

#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format_lite.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/proto_buffer_reader.h>
#include <grpcpp/support/slice.h>

#include <iterator>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/state_watch.h"

namespace gdn {
namespace {

using google::protobuf::internal::WireFormatLite;
using google::protobuf::io::CodedOutputStream;

constexpr char kImportMethod[] = "/gdn.v1.GdnService/ImportState";

absl::Status BadExport(std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("the exported state is not whole: ", what, "; export it again"));
}

// Of ImportState: `data` and its checksum. The one copy of the bytes is the one that gRPC sends.
grpc::ByteBuffer DataMessage(std::string_view data) {
  uint8_t head[16];
  uint8_t* end = WireFormatLite::WriteTagToArray(v1::ImportStateRequest::kDataFieldNumber,
                                                 WireFormatLite::WIRETYPE_LENGTH_DELIMITED, head);
  end = CodedOutputStream::WriteVarint64ToArray(data.size(), end);
  v1::ImportStateRequest rest;
  rest.set_checksum(Hash64(data));
  const grpc::Slice slices[] = {
      {head, static_cast<size_t>(end - head)}, {data.data(), data.size()}, grpc::Slice(rest.SerializeAsString())};
  return {slices, std::size(slices)};
}

// A call that sends many messages and gets one answer, as raw bytes: the next message is made while the one before is
// on its way, and large fields are copied once. For one thread; the context must outlive it; Finish must be called.
class Upload final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Upload(const std::shared_ptr<grpc::ChannelInterface>& channel, const std::string& method,
         grpc::ClientContext* context)
      : stub_(channel) {
    stub_.PrepareBidiStreamingCall(context, method, {}, this);
    StartRead(&answer_);
    AddHold();  // writes are started from outside of its callbacks
    StartCall();
  }

  // Returns once the message before is on its way. False where the server has answered already: Finish has the answer.
  bool Write(grpc::ByteBuffer message) {
    {
      absl::MutexLock lock(&mu_);
      AwaitWrite();
      if (!open_) return false;
      writing_ = true;
    }
    message_.Swap(&message);
    StartWrite(&message_);
    return true;
  }

  // The answer, after the last message. Errors of the call.
  absl::StatusOr<grpc::ByteBuffer> Finish() {
    bool open = false;
    {
      absl::MutexLock lock(&mu_);
      AwaitWrite();
      open = std::exchange(open_, false);
    }
    if (open) StartWritesDone();
    RemoveHold();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&done_));
    GDN_RETURN_IF_ERROR(StatusFromGrpc(status_));
    return std::move(answer_);
  }

 private:
  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    writing_ = false;
    if (!ok) open_ = false;
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mu_);
    status_ = status;
    done_ = true;
  }

  void AwaitWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const auto written = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return !writing_; };
    mu_.Await(absl::Condition(&written));
  }

  grpc::GenericStub stub_;
  grpc::ByteBuffer message_;  // the write's that is under way
  grpc::ByteBuffer answer_;

  absl::Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

absl::Status ReceiveState(grpc::ClientReaderInterface<v1::ExportStateResponse>& reader, grpc::ClientContext& context,
                          absl::FunctionRef<absl::Status(std::string_view)> sink, const TransferProgress& progress) {
  absl::Status status;
  StatePieces pieces;
  v1::ExportStateResponse piece;
  while (status.ok() && reader.Read(&piece)) {
    status = pieces.Add(piece.data(), piece.offset(), piece.total_bytes(), piece.checksum());
    if (status.ok()) status = sink(piece.data());
    if (status.ok() && progress) progress(pieces.received_bytes(), pieces.total_bytes());
  }
  if (!status.ok()) {
    context.TryCancel();
    (void)reader.Finish();
    return status;
  }
  GDN_RETURN_IF_ERROR(StatusFromGrpc(reader.Finish()));
  if (!pieces.begun()) return BadExport("no piece came");
  if (!pieces.whole()) return BadExport(StrCat(pieces.received_bytes(), " of ", pieces.total_bytes(), " bytes came"));
  return absl::OkStatus();
}

absl::StatusOr<v1::Session> SendState(const std::shared_ptr<grpc::ChannelInterface>& channel,
                                      grpc::ClientContext& context, const v1::ImportStateRequest::Target& target,
                                      absl::FunctionRef<absl::StatusOr<std::string_view>(size_t)> source,
                                      const TransferProgress& progress) {
  Upload upload(channel, kImportMethod, &context);

  v1::ImportStateRequest first;
  *first.mutable_target() = target;
  const grpc::Slice message(first.SerializeAsString());
  bool open = upload.Write({&message, 1});
  for (int64_t sent = 0; open;) {
    absl::StatusOr<std::string_view> piece = source(kImportChunkBytes);
    if (!piece.ok()) {
      // Cancelled and not ended: the server must not take what it has for the whole file.
      context.TryCancel();
      (void)upload.Finish();
      return piece.status();
    }
    if (piece->empty()) break;
    open = upload.Write(DataMessage(*piece));
    if (!open) break;
    sent += static_cast<int64_t>(piece->size());
    if (progress) progress(sent, target.total_bytes());
  }
  GDN_ASSIGN_OR_RETURN(grpc::ByteBuffer answer, upload.Finish());
  v1::ImportStateResponse response;
  grpc::ProtoBufferReader reader(&answer);
  if (answer.Valid() && response.ParseFromZeroCopyStream(&reader)) return std::move(*response.mutable_session());
  return absl::InternalError("the server's answer is no ImportStateResponse");
}

}  // namespace gdn
