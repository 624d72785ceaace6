#include "tools/gdn_parity/operator_row.h"

#include <utility>

#include "base/status_macros.h"

namespace gdn::parity {

OperatorRow::OperatorRow(Backend& backend, std::string op, Attributes attributes)
    : data_(backend), op_(std::move(op)), attributes_(std::move(attributes)) {}

void OperatorRow::Given(const std::string& name, const Shape& shape, const std::vector<float>& values) {
  if (Dumping()) tensors_.push_back({"in." + name, shape, values});
}

void OperatorRow::Result(const std::string& name, const Shape& shape, const std::vector<float>& actual,
                         const std::vector<float>& expected) {
  if (pool_ != nullptr) {
    pool_->Append(actual, expected);
  } else {
    difference_.Merge(Compare(actual, expected));
  }
  if (Dumping()) tensors_.push_back({"out." + name, shape, actual});
}

absl::StatusOr<Difference> OperatorRow::Finish() {
  for (const auto& compare : outputs_) GDN_RETURN_IF_ERROR(compare());
  if (!op_.empty()) GDN_RETURN_IF_ERROR(Dump(op_, attributes_, tensors_));
  return difference_;
}

}  // namespace gdn::parity
