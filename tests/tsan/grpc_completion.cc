// Lets ThreadSanitizer see how gRPC hands work from one thread to another. Linked into every program of the tsan
// preset, and into no other.
//
// Debian's gRPC is built without ThreadSanitizer: a batch of operations is started in one thread and its completion
// comes in another, in order, but by way of lock-free queues that the sanitizer does not see. Defined here, these
// functions of the C core take the place of the library's for libgrpc++: what was done before a batch with some tag was
// started comes before what is done once that tag is out of its completion queue. And what was written to a message's
// slice before it was sent comes before what reads that slice: an in-process channel hands slices over as they are.
// Nothing else is ordered, so races between handlers, the engine and reactions are still found.
#include <dlfcn.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>

namespace {

template <typename Function>
Function* Library(const char* name) {
  void* symbol = dlsym(RTLD_NEXT, name);
  if (symbol == nullptr) {
    std::fprintf(stderr, "%s: the gRPC library does not define %s\n", __FILE__, name);
    std::abort();
  }
  return reinterpret_cast<Function*>(symbol);
}

grpc_event Completed(grpc_event event) {
  if (event.type == GRPC_OP_COMPLETE) __tsan_acquire(event.tag);
  return event;
}

void Sent(const grpc_op& op) {
  if (op.op != GRPC_OP_SEND_MESSAGE || op.data.send_message.send_message == nullptr) return;
  const grpc_slice_buffer& slices = op.data.send_message.send_message->data.raw.slice_buffer;
  for (size_t i = 0; i < slices.count; ++i) __tsan_release(GRPC_SLICE_START_PTR(slices.slices[i]));
}

}  // namespace

extern "C" {

grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops, void* tag, void* reserved) {
  static auto* const library = Library<decltype(grpc_call_start_batch)>("grpc_call_start_batch");
  for (size_t i = 0; i < nops; ++i) Sent(ops[i]);
  __tsan_release(tag);
  return library(call, ops, nops, tag, reserved);
}

grpc_event grpc_completion_queue_next(grpc_completion_queue* cq, gpr_timespec deadline, void* reserved) {
  static auto* const library = Library<decltype(grpc_completion_queue_next)>("grpc_completion_queue_next");
  return Completed(library(cq, deadline, reserved));
}

grpc_event grpc_completion_queue_pluck(grpc_completion_queue* cq, void* tag, gpr_timespec deadline, void* reserved) {
  static auto* const library = Library<decltype(grpc_completion_queue_pluck)>("grpc_completion_queue_pluck");
  return Completed(library(cq, tag, deadline, reserved));
}

int grpc_byte_buffer_reader_next(grpc_byte_buffer_reader* reader, grpc_slice* slice) {
  static auto* const library = Library<decltype(grpc_byte_buffer_reader_next)>("grpc_byte_buffer_reader_next");
  const int found = library(reader, slice);
  if (found != 0) __tsan_acquire(GRPC_SLICE_START_PTR(*slice));
  return found;
}

int grpc_byte_buffer_reader_peek(grpc_byte_buffer_reader* reader, grpc_slice** slice) {
  static auto* const library = Library<decltype(grpc_byte_buffer_reader_peek)>("grpc_byte_buffer_reader_peek");
  const int found = library(reader, slice);
  if (found != 0) __tsan_acquire(GRPC_SLICE_START_PTR(**slice));
  return found;
}

}  // extern "C"
