// A call that sends many messages and gets one answer, as raw bytes: the next message is made while the one before is
// on its way, and large fields are copied once.
//
// Thread safety: for one thread. Ownership: the context must outlive it; it must be finished before it dies.
//
//   Upload upload(channel, "/gdn.v1.GdnService/ImportState", &context);
//   while (upload.Write(NextMessage())) continue;
//   GDN_ASSIGN_OR_RETURN(const grpc::ByteBuffer answer, upload.Finish());
#pragma once

#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/client_callback.h"

namespace gdn {

class Upload final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  Upload(std::shared_ptr<grpc::ChannelInterface> channel, const std::string& method, grpc::ClientContext* context);

  // Returns once the message before is on its way. False where the server has answered already: Finish has the answer.
  bool Write(grpc::ByteBuffer message);
  // The answer, after the last message. Errors of the call.
  absl::StatusOr<grpc::ByteBuffer> Finish();

 private:
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;
  void AwaitWrite() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  grpc::GenericStub stub_;
  grpc::ByteBuffer message_;  // the write's that is under way
  grpc::ByteBuffer answer_;

  absl::Mutex mu_;
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  bool done_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);
};

}  // namespace gdn
