// The structs behind the handles of gdn.h, and helpers of its functions.
//
// Thread safety: the context's mutex guards a context and its pools; InOrderOf locks it. Ownership: a pool borrows its
// context.
//
//   return Call([&] { return InOrderOf(pool->context, stream, [&] { return Issue(*pool); }); });
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/error.h"
#include "capi/gdn.h"
#include "kernels/backend.h"
#include "kernels/layer/gdn_layer.h"

struct gdn_context {
  // Constant after construction.
  std::unique_ptr<gdn::Backend> backend;
  bool on_gpu = false;

  std::mutex mu;
  // Guarded by mu. Threads that issue work to the backend must also hold mu.
  std::unique_ptr<gdn::GdnLayerRunner> runner;
};

// Log length of a slot whose state is lost because a call that was writing it failed.
inline constexpr int32_t kLostState = -1;

struct gdn_pool {
  // Constant after construction.
  gdn_context& context;
  gdn::DeviceBuffer memory = {};  // empty if the pool uses the caller's memory
  gdn::StatePoolView view;
  bool lists_slots = false;  // the pool tracks which slots are in use; false with the caller's memory: all are

  // Guarded by context.mu.
  int64_t* token_counts = nullptr;  // [slots], own or the caller's
  int32_t* log_lengths = nullptr;
  std::vector<int64_t> own_token_counts = {};
  std::vector<int32_t> own_log_lengths = {};
  std::vector<char> in_use = {};   // [slots], if lists_slots
  std::vector<int32_t> free = {};  // slots that are not in use; the last is allocated next

  const gdn::LayerDims& dims() const { return view.layout.dims(); }
};

struct gdn_bytes {
  std::string bytes;
};

namespace gdn::capi {

// Returns the status as a gdn_code. Stores an error for the thread's gdn_last_error and gdn_last_reason.
int Report(const absl::Status& status);

// Runs `function`, which returns an absl::Status, and returns it as a gdn_code, as Report does. Exceptions become
// codes: std::bad_alloc GDN_OUT_OF_MEMORY, other std ones GDN_INTERNAL.
template <typename Function>
int Call(Function&& function) noexcept {
  try {
    return Report(function());
  } catch (const std::bad_alloc&) {
    return Report(MakeError(absl::StatusCode::kResourceExhausted, reason::kBytesExhausted,
                            "the host has no memory left; free some, or use fewer slots or tokens"));
  } catch (const std::exception& error) {
    return Report(MakeError(absl::StatusCode::kInternal, reason::kInternal, error.what()));
  }
}

// Runs `issue` under the context's mutex. On a GPU its work runs after the work already in `stream` (null: the default
// stream) and before later work there. Does not wait for the work. Returns the status of `issue`, or INVALID_ARGUMENT
// if the stream is being captured; then `issue` has not run.
absl::Status InOrderOf(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue);
// Runs `issue` like InOrderOf; if it succeeds, waits under the mutex until the device has done all work of the context.
absl::Status AndWait(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue);

// IssueOn runs `issue` as InOrderOf does, WaitOn as AndWait, for the function of the C interface with this name. They
// return a gdn_code, which is GDN_INVALID_ARGUMENT if `pool` is null.
int IssueOn(const char* function, gdn_pool* pool, void* stream, absl::FunctionRef<absl::Status()> issue);
int WaitOn(const char* function, gdn_pool* pool, void* stream, absl::FunctionRef<absl::Status()> issue);

// Makes the error INVALID_ARGUMENT with this reason and message, and the argument's name as metadata "field".
absl::Status Invalid(std::string_view reason, std::string_view field, std::string_view message);
// OK, or INVALID_ARGUMENT (INPUT_MISSING) if `pointer` is null. `what` names the argument, and `function` the function
// of the C interface, for the message.
absl::Status RequireArgument(const char* function, const char* what, const void* pointer);
// OK, or INVALID_ARGUMENT if `given` is null (INPUT_MISSING), or its `struct_size` differs from `known`, the size in
// this library (INVALID_SPEC). `type` is the struct's name, for the message.
absl::Status RequireStruct(const char* function, const char* type, const void* given, size_t struct_size, size_t known);
// OK if `count` is 0. INVALID_ARGUMENT if `count` is negative, the array is null, or a slot in it is outside the pool
// or not in use. With `distinct`, also if a slot occurs twice. The caller holds the context's mutex.
absl::Status RequireSlots(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots,
                          bool distinct);

// OK, or DATA_LOSS (STATE_LOST) if a slot's state is lost; skips negative slots, and does not check others' range. The
// caller holds the context's mutex.
absl::Status RequireStates(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots);

}  // namespace gdn::capi
