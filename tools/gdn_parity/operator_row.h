// One call of an operator as a parity row: inputs on the backend, outputs to be compared with the reference's and
// dumped.
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
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "tools/gdn_parity/backend_data.h"
#include "tools/gdn_parity/difference.h"
#include "tools/gdn_parity/dump.h"

namespace gdn::parity {

class OperatorRow {
 public:
  // `op` is what check_parity_dump.py knows the operator as; empty: the call is not dumped.
  OperatorRow(Backend& backend, std::string op, Attributes attributes = {});

  BackendData& data() { return data_; }
  // Outputs go to `pool`, to be compared with those of other calls; Finish then gives no difference of its own.
  void PoolOutputs(OutputPair* pool) { pool_ = pool; }

  absl::StatusOr<float*> In(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values);
  absl::StatusOr<int32_t*> In(const std::string& name, std::vector<int64_t> shape, const std::vector<int32_t>& values);
  absl::StatusOr<double*> In(const std::string& name, std::vector<int64_t> shape, const std::vector<double>& values);
  // An input that is dumped but not uploaded (what a slot holds, say).
  void Given(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values);

  // Poisoned memory, so that what the operator leaves out is seen.
  absl::StatusOr<float*> Out(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& expected);
  absl::StatusOr<int32_t*> Out(const std::string& name, std::vector<int64_t> shape,
                               const std::vector<int32_t>& expected);
  absl::StatusOr<double*> Out(const std::string& name, std::vector<int64_t> shape, const std::vector<double>& expected);
  // Memory that the operator reads and overwrites.
  absl::StatusOr<float*> InPlace(const std::string& in_name, const std::string& out_name, std::vector<int64_t> shape,
                                 const std::vector<float>& values, const std::vector<float>& expected);
  // A result that was read back already.
  void Result(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& actual,
              const std::vector<float>& expected);

  // Reads the outputs back, dumps the row and gives the worst difference of its outputs.
  absl::StatusOr<Difference> Finish();

 private:
  enum class Kind { kFloat, kInt, kDouble };
  struct Output {
    std::string name;
    std::vector<int64_t> shape;
    Kind kind;
    const void* device;
    std::vector<float> expected;
  };

  BackendData data_;
  std::string op_;
  Attributes attributes_;
  std::vector<DumpTensor> tensors_;
  std::vector<Output> outputs_;
  Difference difference_;
  OutputPair* pool_ = nullptr;
};

}  // namespace gdn::parity
