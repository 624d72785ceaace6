// What the handles of gdn.h are, and how its functions run.
//
// Thread safety: what a context and its pools hold is guarded by the context's mutex, which InOrderOf takes. Ownership:
// a pool borrows its context.
//
//   return Call([&] { return InOrderOf(pool->context, stream, [&] { return Issue(*pool); }); });
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <string>
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
  // Guarded by mu, as everything that is issued.
  std::unique_ptr<gdn::GdnLayerRunner> runner;
};

// Stands for a log's length if the slot's state is not known, because the call that was writing it has failed.
inline constexpr int32_t kLostState = -1;

struct gdn_pool {
  // Constant after construction.
  gdn_context& context;
  gdn::DeviceBuffer memory;  // empty where it is the caller's
  gdn::StatePoolView view;
  bool lists_slots = false;  // the library knows which are in use

  // Guarded by context.mu.
  int64_t* token_counts = nullptr;  // [slots], own or the caller's
  int32_t* log_lengths = nullptr;
  std::vector<int64_t> own_token_counts;
  std::vector<int32_t> own_log_lengths;
  std::vector<char> in_use;   // [slots] where lists_slots
  std::vector<int32_t> free;  // those that are not, the next one last

  const gdn::LayerDims& dims() const { return view.layout.dims(); }
};

struct gdn_bytes {
  std::string bytes;
};

namespace gdn::capi {

// Keeps what went wrong for gdn_last_error, and says it as a gdn_code.
int Report(const absl::Status& status);

// What every function of gdn.h that can fail returns: `function`'s status as a code. No exception leaves.
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

// Runs `issue` with the context to itself; on a GPU in the order of the caller's stream.
absl::Status InOrderOf(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue);
// The same, and waits.
absl::Status AndWait(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue);

// INVALID_ARGUMENT where `pointer` is null. `what` names the argument.
absl::Status RequireArgument(const char* function, const char* what, const void* pointer);
// INVALID_ARGUMENT where a struct's size is not the one that this library knows.
// `first`: the size before fields were added at the end, which is taken too.
absl::Status RequireStruct(const char* function, const char* type, const void* given, size_t struct_size, size_t known,
                           size_t first);
inline absl::Status RequireStruct(const char* function, const char* type, const void* given, size_t struct_size,
                                  size_t known) {
  return RequireStruct(function, type, given, struct_size, known, known);
}
// INVALID_ARGUMENT where the array is missing, or a slot of it is outside the pool, not in use or, where `distinct`,
// there twice. Under the context's mutex.
absl::Status RequireSlots(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots,
                          bool distinct);

// DATA_LOSS (STATE_LOST) where one of these slots, which are in the pool, has a lost state. Under the context's mutex.
absl::Status RequireStates(const char* function, const gdn_pool& pool, int32_t count, const int32_t* slots);

}  // namespace gdn::capi
