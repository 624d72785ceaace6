// Runs an operator on one set of inputs on a backend, and its reference on the host, and compares. Params is the
// operator's struct of parameters. Each tensor is declared once, with the member of Params that points at it.
//
// Thread safety: for one thread. Ownership: owns the host tensors; the backend's are freed when Run returns.
//
//   return OperatorCall<L2NormParams>("l2norm", {{"epsilon", "1e-6"}}, {.rows = rows, .width = width})
//       .In(&L2NormParams::x, "x", {rows, width}, random.Normal(rows * width))
//       .Out(&L2NormParams::y, "y", {rows, width})
//       .Run(backend, L2NormReference, L2NormGpu);
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/operator_row.h"

namespace gdn::parity {

// `field` selects a tensor in Params: a pointer to a member, or a function from Params& to a reference.
template <typename Params>
class OperatorCall {
 public:
  // `op`: the operator's name in parity_formulas.py; empty: the call is not dumped.
  OperatorCall(std::string op, Attributes attributes, Params params)
      : op_(std::move(op)), attributes_(std::move(attributes)), host_(std::move(params)) {}

  template <typename Field, typename T>
  OperatorCall& In(Field field, std::string name, Shape shape, std::vector<T> values) {
    const auto held = Hold(std::move(values));
    std::invoke(field, host_) = held->data();
    return Bind([=](OperatorRow& row, Params& device) -> absl::Status {
      GDN_ASSIGN_OR_RETURN(std::invoke(field, device), row.In(name, shape, *held));
      return absl::OkStatus();
    });
  }

  template <typename Field>
  OperatorCall& Out(Field field, std::string name, Shape shape) {
    using T = Element<Field>;
    int64_t count = 1;
    for (const int64_t extent : shape) count *= extent;
    const auto expected = Hold(std::vector<T>(count));
    std::invoke(field, host_) = expected->data();
    return Bind([=](OperatorRow& row, Params& device) -> absl::Status {
      GDN_ASSIGN_OR_RETURN(std::invoke(field, device), row.Out(name, shape, *expected));
      return absl::OkStatus();
    });
  }

  // Declares an input and an output. With `in_place`, both have the same memory on the backend.
  template <typename Input, typename Output>
  OperatorCall& InPlaceIf(bool in_place, Input input, Output output, std::string in_name, std::string out_name,
                          Shape shape, std::vector<float> values) {
    if (!in_place) return In(input, in_name, shape, std::move(values)).Out(output, out_name, shape);
    const auto expected = Hold(values);
    const auto held = Hold(std::move(values));
    std::invoke(input, host_) = held->data();
    std::invoke(output, host_) = expected->data();
    return Bind([=](OperatorRow& row, Params& device) -> absl::Status {
      GDN_ASSIGN_OR_RETURN(float* both, row.InPlace(in_name, out_name, shape, *held, *expected));
      std::invoke(input, device) = both;
      std::invoke(output, device) = both;
      return absl::OkStatus();
    });
  }

  // Declares memory that has `values` before the call. Elements that the operator must not change are compared too.
  template <typename Field>
  OperatorCall& InOut(Field field, std::string name, Shape shape, std::vector<float> values) {
    return InPlaceIf(true, field, field, name, name, std::move(shape), std::move(values));
  }

  // Declares memory that is neither compared nor dumped.
  template <typename Field>
  OperatorCall& Scratch(Field field, int64_t count) {
    using T = Element<Field>;
    const auto on_host = Hold(std::vector<T>(count));
    std::invoke(field, host_) = on_host->data();
    return Bind([=](OperatorRow& row, Params& device) -> absl::Status {
      GDN_ASSIGN_OR_RETURN(std::invoke(field, device), row.data().Poisoned<T>(on_host->size()));
      return absl::OkStatus();
    });
  }

  // Makes every tensor on the backend begin one float after an aligned address.
  OperatorCall& Unaligned() {
    shift_bytes_ = sizeof(float);
    return *this;
  }

  // Adds the outputs to `pool` instead of comparing them, for a case of several calls. Run then returns a zero
  // difference. `pool` is borrowed until Run returns.
  OperatorCall& PoolOutputs(OutputPair& pool) {
    pool_ = &pool;
    return *this;
  }

  // Runs `reference` on the host and `launch` on the backend, and returns the worst difference of the outputs.
  // `launch`: an operator's GPU launcher, or a member of Backend.
  template <typename Reference, typename Launch>
  absl::StatusOr<Difference> Run(Backend& backend, Reference reference, Launch launch) {
    reference(host_);
    OperatorRow row(backend, op_, attributes_);
    row.data().ShiftAllocations(shift_bytes_);
    row.PoolOutputs(pool_);
    Params device = host_;
    for (const Binding& binding : bindings_) GDN_RETURN_IF_ERROR(binding(row, device));
    if constexpr (std::is_invocable_v<Launch, const Params&, const gpu::Stream&>) {
      GDN_ASSIGN_OR_RETURN(const gpu::Stream stream, GpuStreamOf(backend));
      GDN_RETURN_IF_ERROR(launch(device, stream));
    } else {
      GDN_RETURN_IF_ERROR(std::invoke(launch, backend, device));
    }
    return row.Finish();
  }

 private:
  // Element: the type of the elements that a field points at; float for a field whose dtype is known only at run time.
  template <typename Field>
  using Pointer = std::remove_reference_t<std::invoke_result_t<Field, Params&>>;
  template <typename Field>
  using Element = std::conditional_t<std::is_pointer_v<Pointer<Field>>, std::remove_pointer_t<Pointer<Field>>, float>;

  using Binding = std::function<absl::Status(OperatorRow&, Params&)>;

  template <typename T>
  static std::shared_ptr<std::vector<T>> Hold(std::vector<T> values) {
    return std::make_shared<std::vector<T>>(std::move(values));
  }

  OperatorCall& Bind(Binding binding) {
    bindings_.push_back(std::move(binding));
    return *this;
  }

  std::string op_;
  Attributes attributes_;
  Params host_;
  std::vector<Binding> bindings_;
  int64_t shift_bytes_ = 0;
  OutputPair* pool_ = nullptr;
};

}  // namespace gdn::parity
