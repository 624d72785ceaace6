// One call of an operator in a parity case: uploads inputs, compares outputs with the reference's, and dumps both.
//
// Thread safety: for one thread. Ownership: frees its backend memory on destruction; the backend must outlive it.
//
//   OperatorRow row(backend, "l2norm", {{"epsilon", "1e-06"}});
//   GDN_ASSIGN_OR_RETURN(params.x, row.In("x", {rows, width}, x));
//   GDN_ASSIGN_OR_RETURN(params.y, row.Out("y", {rows, width}, expected));
//   GDN_RETURN_IF_ERROR(L2NormGpu(params, stream));
//   return row.Finish();
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {

class OperatorRow {
 public:
  // `op`: the operator's name in parity_formulas.py; empty: the call is not dumped.
  OperatorRow(Backend& backend, std::string op, Attributes attributes = {});

  BackendData& data() { return data_; }
  // Adds the outputs to `pool`, to be compared with those of other calls. Finish then returns a zero difference.
  void PoolOutputs(OutputPair* pool) { pool_ = pool; }

  template <typename T>
  absl::StatusOr<T*> In(const std::string& name, const Shape& shape, const std::vector<T>& values) {
    const std::vector<float> high(values.begin(), values.end());
    if constexpr (std::is_same_v<T, double>) {
      // A pair of floats holds 48 bits of the double.
      std::vector<float> low(values.size());
      for (size_t i = 0; i < values.size(); ++i) low[i] = static_cast<float>(values[i] - double{high[i]});
      Given(name + ".low", shape, low);
    }
    Given(name, shape, high);
    return data_.Upload(values);
  }
  // Adds an input that is dumped but not uploaded, such as a slot's contents.
  void Given(const std::string& name, const Shape& shape, const std::vector<float>& values);

  // Returns poisoned memory for an output, so that elements that the operator does not write are noticed. `expected`:
  // the reference's output, which Finish compares.
  template <typename T>
  absl::StatusOr<T*> Out(const std::string& name, const Shape& shape, const std::vector<T>& expected) {
    GDN_ASSIGN_OR_RETURN(T * device, data_.Poisoned<T>(static_cast<int64_t>(expected.size())));
    Expect(name, shape, device, expected);
    return device;
  }
  // Returns memory that has `values`, which the operator overwrites with an output. `expected`: the reference's output.
  absl::StatusOr<float*> InPlace(const std::string& in_name, const std::string& out_name, const Shape& shape,
                                 const std::vector<float>& values, const std::vector<float>& expected) {
    GDN_ASSIGN_OR_RETURN(float* device, In(in_name, shape, values));
    Expect(out_name, shape, device, expected);
    return device;
  }
  // Adds an output that the caller has read back itself.
  void Result(const std::string& name, const Shape& shape, const std::vector<float>& actual,
              const std::vector<float>& expected);

  // Reads the outputs back, dumps the call (Dump, if dumps are on) and returns the worst difference of its outputs.
  // Errors of the backend and of Dump.
  absl::StatusOr<Difference> Finish();

 private:
  template <typename T>
  void Expect(const std::string& name, const Shape& shape, const T* device, const std::vector<T>& expected) {
    outputs_.push_back([=, this, floats = std::vector<float>(expected.begin(), expected.end())]() -> absl::Status {
      GDN_ASSIGN_OR_RETURN(const std::vector<T> actual, data_.Download(device, static_cast<int64_t>(floats.size())));
      Result(name, shape, {actual.begin(), actual.end()}, floats);
      return absl::OkStatus();
    });
  }

  BackendData data_;
  std::string op_;
  Attributes attributes_;
  std::vector<DumpTensor> tensors_;
  std::vector<std::function<absl::Status()>> outputs_;  // each function reads one output back
  Difference difference_;
  OutputPair* pool_ = nullptr;
};

}  // namespace gdn::parity
