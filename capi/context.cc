// gdn.h: the library, its errors, and contexts.

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "capi/handles.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu_backend/gpu_backend.h"

#ifndef GDN_VERSION
#error "GDN_VERSION comes from CMake"
#endif

namespace gdn::capi {
namespace {

struct LastError {
  std::string message;
  std::string reason;
};
thread_local LastError last_error;

gdn_code CodeOf(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return GDN_OK;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return GDN_INVALID_ARGUMENT;
    case absl::StatusCode::kResourceExhausted:
      return GDN_OUT_OF_MEMORY;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnimplemented:
      return GDN_FAILED_PRECONDITION;
    case absl::StatusCode::kDataLoss:
      return GDN_DATA_LOSS;
    case absl::StatusCode::kUnavailable:
      return GDN_DEVICE_FAILED;
    default:
      return GDN_INTERNAL;
  }
}

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int32_t backend, int32_t device, int32_t threads) {
  if (backend == GDN_GPU) return MakeGpuBackend({.device = device, .graphs = GpuGraphs::kOff});
  if (backend == GDN_CPU && device == 0) return MakeCpuBackend({.threads = threads});
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kValueOutOfRange,
                   absl::StrCat("gdn_context_create: backend is ", backend, " and device ", device,
                                "; expected GDN_CPU, 1, with device 0, or GDN_GPU, 2"));
}

}  // namespace

int Report(const absl::Status& status) {
  if (status.ok()) return GDN_OK;
  last_error.message = std::string(status.message());
  last_error.reason = ErrorReason(status);
  return CodeOf(status.code());
}

absl::Status InOrderOf(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue) {
  const std::lock_guard<std::mutex> lock(context.mu);
  return context.on_gpu ? GpuIssueInOrderOf(*context.backend, stream, issue) : issue();
}

absl::Status AndWait(gdn_context& context, void* stream, absl::FunctionRef<absl::Status()> issue) {
  return InOrderOf(context, stream, [&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(issue());
    return context.backend->Synchronize();
  });
}

int IssueOn(const char* function, gdn_pool* pool, void* stream, absl::FunctionRef<absl::Status()> issue) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument(function, "pool", pool));
    return InOrderOf(pool->context, stream, issue);
  });
}

int WaitOn(const char* function, gdn_pool* pool, void* stream, absl::FunctionRef<absl::Status()> issue) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument(function, "pool", pool));
    return AndWait(pool->context, stream, issue);
  });
}

absl::Status Invalid(std::string_view reason, std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, message, {{"field", std::string(field)}});
}

absl::Status RequireArgument(const char* function, const char* what, const void* pointer) {
  if (pointer != nullptr) return absl::OkStatus();
  return Invalid(reason::kInputMissing, what,
                 absl::StrCat(function, ": ", what, " is NULL; gdn.h says what it has to be"));
}

absl::Status RequireStruct(const char* function, const char* type, const void* given, size_t struct_size,
                           size_t known) {
  GDN_RETURN_IF_ERROR(RequireArgument(function, type, given));
  if (struct_size == known) return absl::OkStatus();
  return Invalid(reason::kInvalidSpec, "struct_size",
                 absl::StrCat(function, ": struct_size is ", struct_size, "; expected ", known, ", sizeof(", type,
                              "): zero the struct, then set its size"));
}

}  // namespace gdn::capi

using gdn::capi::AndWait;
using gdn::capi::Call;
using gdn::capi::RequireArgument;

int32_t gdn_abi_version(void) { return GDN_ABI_VERSION; }

const char* gdn_version(void) { return GDN_VERSION; }

const char* gdn_gpu_name(void) { return GDN_GPU_NAME; }

const char* gdn_last_error(void) { return gdn::capi::last_error.message.c_str(); }

const char* gdn_last_reason(void) { return gdn::capi::last_error.reason.c_str(); }

int gdn_context_create(int32_t backend, int32_t device, int32_t threads, gdn_context** context) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_context_create", "context", context));
    auto made = std::make_unique<gdn_context>();
    GDN_ASSIGN_OR_RETURN(made->backend, gdn::capi::MakeBackend(backend, device, threads));
    made->on_gpu = backend == GDN_GPU;
    made->runner = std::make_unique<gdn::GdnLayerRunner>(*made->backend);
    *context = made.release();
    return absl::OkStatus();
  });
}

void gdn_context_destroy(gdn_context* context) { delete context; }

const char* gdn_context_device(const gdn_context* context) { return context->backend->info().device.c_str(); }

const char* gdn_context_numerics_id(const gdn_context* context) { return context->backend->info().numerics_id.c_str(); }

int gdn_context_synchronize(gdn_context* context) {
  return Call([&]() -> absl::Status {
    GDN_RETURN_IF_ERROR(RequireArgument("gdn_context_synchronize", "context", context));
    return AndWait(*context, nullptr, [] { return absl::OkStatus(); });
  });
}
