// A stream of state files from the server: sends one at a time, piece by piece.
//
// The next piece is made ready while the one before is on its way.
// Thread safety: Send from one thread at a time, not before the file before has been sent. Ownership: deletes itself
// when the call is over. A derived class calls Finish once, and only while nothing of its own is under way.
//
//   class Export final : public FileReactor {
//     void OnFileSent() override { Finish(grpc::Status::OK); }
//   };
#pragma once

#include <grpcpp/support/server_callback.h>

#include <atomic>

#include "server/rpc/state_pieces.h"

namespace gdn {

class FileReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 protected:
  // Ends in OnFileSent, or in OnClientGone where the client does not read any more.
  void Send(FilePieces pieces);

  virtual void OnFileSent() = 0;
  virtual void OnClientGone();

 private:
  void OnWriteDone(bool ok) final;
  void OnDone() final { delete this; }
  void SendNext();
  // True where the next piece is to be sent.
  bool Advance();

  FilePieces pieces_;
  grpc::ByteBuffer writing_;
  grpc::ByteBuffer next_;
  bool has_next_ = false;
  bool broken_ = false;
  // The write of this piece and the making of the next: whoever is last goes on.
  std::atomic<int> under_way_{0};
};

}  // namespace gdn
