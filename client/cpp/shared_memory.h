// Memory shared with a server on this host, so that tensors need not travel in messages: ShareMemory from the client's
// side.
//
// The server makes a region for this client alone, which is mapped here. Tensors are written to it in place, requests
// name where they lie, and the server puts outputs where the request says. Works with unary calls and with streams.
// Where the server offers none (UNIMPLEMENTED), as one on another host does, or has no room (RESOURCE_EXHAUSTED), send
// tensors in the messages: the bits are the same.
// A part of the region may be written to again once the call that it was an input of has been answered. Calls that are
// under way when the region ends go on with it; later ones are refused with NOT_FOUND (SHARED_REGION_NOT_FOUND).
// Thread safety: all methods are safe from any thread; each part of the region belongs to whom it was given.
// Ownership: owns the mapping and the call that keeps the region; must not outlive the Client that opened it, nor the
// spans and views that it gave out. Destroying it ends the region.
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

class SharedMemory {
 public:
  // What Client::ShareMemory does once the call's context is made. `timeout` is of the region's making; the region
  // itself lives on. The server's errors; UNIMPLEMENTED (SHARED_MEMORY_NOT_OFFERED) where the file that it names is
  // not to be found here, or is not what it says; DEADLINE_EXCEEDED.
  static absl::StatusOr<std::unique_ptr<SharedMemory>> Open(v1::GdnService::StubInterface& stub,
                                                            std::unique_ptr<grpc::ClientContext> context, int64_t bytes,
                                                            absl::Duration timeout);
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;
  ~SharedMemory();

  const std::string& region() const { return region_; }
  absl::Span<char> bytes() const { return {data_, size_}; }
  // OK while the server keeps the region; then why it does not.
  absl::Status status() const;

  // The next free `bytes`, at a multiple of 64; for use as a request's output_shared, for example. RESOURCE_EXHAUSTED
  // where no such part is left.
  absl::StatusOr<v1::SharedRange> Allocate(int64_t bytes);
  // Takes back all parts that were given out.
  void Reset();
  // For callers who give out parts themselves. INVALID_ARGUMENT (INVALID_SHARED_RANGE) outside the region.
  absl::StatusOr<v1::SharedRange> RangeAt(int64_t offset, int64_t bytes) const;
  // The bytes of a range of this region. Errors as RangeAt, and for ranges of other regions.
  absl::StatusOr<absl::Span<char>> BytesOf(const v1::SharedRange& range) const;

  // Makes `tensor` one whose bytes are allocated here, and gives them to be filled. Errors of Allocate, and
  // INVALID_ARGUMENT where the shape is not valid (INVALID_TENSOR_SHAPE, SHAPE_OVERFLOW).
  absl::StatusOr<absl::Span<char>> AddTensor(DType dtype, absl::Span<const int64_t> shape, v1::Tensor* tensor);
  // The same with the bytes of `view`.
  absl::Status AddTensor(const TensorView& view, v1::Tensor* tensor);
  // The tensor's dtype, shape and bytes, whether they are in this region or in the message. INVALID_ARGUMENT as
  // BytesOf and ViewTensor (tensor_codec.h).
  absl::StatusOr<TensorView> View(const v1::Tensor& tensor) const;

 private:
  class Registration;

  explicit SharedMemory(std::unique_ptr<Registration> registration);
  absl::Status Map(const v1::SharedRegion& region);

  std::unique_ptr<Registration> registration_;
  std::string region_;
  char* data_ = nullptr;
  size_t size_ = 0;
  absl::Mutex mu_;
  int64_t next_ ABSL_GUARDED_BY(mu_) = 0;  // of the parts that are not given out
};

}  // namespace gdn
