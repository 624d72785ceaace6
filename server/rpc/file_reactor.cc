#include "server/rpc/file_reactor.h"

#include <utility>

#include "base/error.h"
#include "server/rpc/rpc_status.h"

namespace gdn {

void FileReactor::Send(FilePieces pieces) {
  pieces_ = std::move(pieces);
  writing_ = pieces_.Next();
  SendNext();
}

void FileReactor::SendNext() {
  do {
    under_way_.store(2);
    StartWrite(&writing_);
    has_next_ = !pieces_.done();
    if (has_next_) next_ = pieces_.Next();
    if (under_way_.fetch_sub(1) != 1) return;  // OnWriteDone goes on
  } while (Advance());
}

void FileReactor::OnWriteDone(bool ok) {
  if (!ok) broken_ = true;
  if (under_way_.fetch_sub(1) == 1 && Advance()) SendNext();
}

bool FileReactor::Advance() {
  if (!broken_ && has_next_) {
    writing_.Swap(&next_);
    next_.Clear();
    return true;
  }
  pieces_ = FilePieces();
  writing_.Clear();
  next_.Clear();
  broken_ ? OnClientGone() : OnFileSent();
  return false;
}

void FileReactor::OnClientGone() {
  Finish(ToGrpcStatus(MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has gone")));
}

}  // namespace gdn
