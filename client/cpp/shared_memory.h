// Memory shared with a server on this host, so that tensors need not travel in messages: ShareMemory for clients.
//
// The server makes a region for this client only, and the client maps it. The client writes tensors into the region
// and requests name their places. The server puts outputs where the request says. This works with unary calls and
// streams. If the server shares no memory (UNIMPLEMENTED), for example from another host, or has no room
// (RESOURCE_EXHAUSTED), send tensors in messages; the bits are the same. Write to a part of the region again only
// after the call that uses it as an input was answered. If the region ends, calls in flight can still use it; later
// ones get NOT_FOUND (SHARED_REGION_NOT_FOUND).
// Thread safety: all methods are safe from any thread. Each part of the region belongs to the caller that allocated
// it.
// Ownership: owns the mapping and the call that keeps the region. It must not outlive its Client. Spans and views that
// it returned must not outlive it. The destructor ends the region.
//
//   GDN_ASSIGN_OR_RETURN(auto memory, client.ShareMemory(8 << 20));
//   v1::DecodeRequest step;                                             // sessions, layer, ...
//   GDN_ASSIGN_OR_RETURN(absl::Span<char> x, memory->AddTensor(DType::kBF16, {32, 1, 2048},
//                                                              step.mutable_hidden_states()->mutable_hidden_states()));
//   GDN_ASSIGN_OR_RETURN(*step.mutable_output_shared(), memory->Allocate(32 * 2048 * 2));
//   for (;;) {
//     FillIn(x);                                                        // in place
//     GDN_ASSIGN_OR_RETURN(v1::DecodeResponse reply, client.Decode(step));
//     GDN_ASSIGN_OR_RETURN(TensorView y, memory->View(reply.output()));
//   }
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/dtype.h"
#include "base/tensor_view.h"
#include "gdn/v1/service.grpc.pb.h"
#include "grpcpp/client_context.h"

namespace gdn {

class ShareMemoryCall;

class SharedMemory {
 public:
  // Client::ShareMemory calls this, and it waits for the server. `timeout` is for the opening; the region itself has
  // none. Returns the server's errors, DEADLINE_EXCEEDED, or UNIMPLEMENTED (SHARED_MEMORY_NOT_OFFERED) if the file that
  // the server names is missing on this host, or is not as described. FAILED_PRECONDITION for a stub without async().
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(v1::GdnService::StubInterface& stub,
                                                            std::unique_ptr<grpc::ClientContext> context, int64_t bytes,
                                                            absl::Duration timeout);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  const std::string& region() const { return region_; }
  absl::Span<char> bytes() const { return {data_, size_}; }
  // OK while the server keeps the region. Afterwards, the error with which it ended it; CANCELLED if it gave none.
  absl::Status status() const;

  // Allocates the next `bytes` free bytes of the region, at a multiple of 64, for example as a request's output_shared.
  // RESOURCE_EXHAUSTED if the region has too few left, or `bytes` is negative.
  absl::StatusOr<v1::SharedRange> Allocate(int64_t bytes);
  // Frees all ranges that were allocated. No call may use them any more.
  void Reset();
  // Returns the range at `offset`, for callers that divide the region themselves. INVALID_ARGUMENT
  // (INVALID_SHARED_RANGE) if it is not inside the region.
  absl::StatusOr<v1::SharedRange> RangeAt(int64_t offset, int64_t bytes) const;
  // Returns the bytes of a range of this region. Errors as in RangeAt, also for ranges of other regions.
  absl::StatusOr<absl::Span<char>> BytesOf(const v1::SharedRange& range) const;

  // Allocates bytes for `tensor`, sets the tensor to them, and returns them to be filled. Errors as in Allocate, and
  // INVALID_ARGUMENT if the shape is invalid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW).
  absl::StatusOr<absl::Span<char>> AddTensor(DType dtype, absl::Span<const int64_t> shape, v1::Tensor* tensor);
  // Gives `tensor` the dtype and shape of `view`, allocates its bytes in this region and copies those of `view` there.
  // Errors as in the other AddTensor, and INVALID_ARGUMENT (INVALID_TENSOR_DATA) if `view` has not the bytes of its
  // shape.
  absl::Status AddTensor(const TensorView& view, v1::Tensor* tensor);
  // Returns the tensor's dtype, shape and bytes. The bytes are in this region or in the message. Errors are the
  // INVALID_ARGUMENT ones of BytesOf and of ViewTensor (tensor_codec.h).
  absl::StatusOr<TensorView> View(const v1::Tensor& tensor) const;

 private:
  explicit SharedMemory(std::unique_ptr<ShareMemoryCall> keeper);
  absl::Status Map(const v1::SharedRegion& region);

  std::unique_ptr<ShareMemoryCall> keeper_;
  std::string region_;
  char* data_ = nullptr;
  size_t size_ = 0;
  absl::Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;  // first byte that is not allocated
};

}  // namespace gdn
