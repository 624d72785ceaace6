#include "tools/gdn_parity/operator_row.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace gdn::parity {
namespace {

template <typename T>
std::vector<float> ToFloats(const std::vector<T>& values) {
  std::vector<float> floats(values.size());
  for (size_t i = 0; i < values.size(); ++i) floats[i] = static_cast<float>(values[i]);
  return floats;
}

template <typename T>
absl::StatusOr<std::vector<float>> DownloadAs(BackendData& data, const void* device, size_t count) {
  std::vector<T> values(count);
  GDN_RETURN_IF_ERROR(data.DownloadBytes(values.data(), device, count * sizeof(T)));
  return ToFloats(values);
}

}  // namespace

OperatorRow::OperatorRow(Backend& backend, std::string op, Attributes attributes)
    : data_(backend), op_(std::move(op)), attributes_(std::move(attributes)) {}

absl::StatusOr<float*> OperatorRow::In(const std::string& name, std::vector<int64_t> shape,
                                       const std::vector<float>& values) {
  Given(name, std::move(shape), values);
  return data_.Upload(values);
}

absl::StatusOr<int32_t*> OperatorRow::In(const std::string& name, std::vector<int64_t> shape,
                                         const std::vector<int32_t>& values) {
  Given(name, std::move(shape), ToFloats(values));
  GDN_ASSIGN_OR_RETURN(void* device, data_.UploadBytes(values.data(), values.size() * sizeof(int32_t)));
  return static_cast<int32_t*>(device);
}

absl::StatusOr<double*> OperatorRow::In(const std::string& name, std::vector<int64_t> shape,
                                        const std::vector<double>& values) {
  // A pair of floats holds 48 bits of the double.
  const std::vector<float> high = ToFloats(values);
  std::vector<float> low(values.size());
  for (size_t i = 0; i < values.size(); ++i) low[i] = static_cast<float>(values[i] - double{high[i]});
  Given(absl::StrCat(name, ".low"), shape, low);
  Given(name, std::move(shape), high);
  GDN_ASSIGN_OR_RETURN(void* device, data_.UploadBytes(values.data(), values.size() * sizeof(double)));
  return static_cast<double*>(device);
}

void OperatorRow::Given(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values) {
  if (Dumping()) tensors_.push_back({absl::StrCat("in.", name), std::move(shape), values});
}

absl::StatusOr<float*> OperatorRow::Out(const std::string& name, std::vector<int64_t> shape,
                                        const std::vector<float>& expected) {
  GDN_ASSIGN_OR_RETURN(float* device, data_.Poisoned(static_cast<int64_t>(expected.size())));
  outputs_.push_back({name, std::move(shape), Kind::kFloat, device, expected});
  return device;
}

absl::StatusOr<int32_t*> OperatorRow::Out(const std::string& name, std::vector<int64_t> shape,
                                          const std::vector<int32_t>& expected) {
  GDN_ASSIGN_OR_RETURN(void* device, data_.PoisonedBytes(expected.size() * sizeof(int32_t)));
  outputs_.push_back({name, std::move(shape), Kind::kInt, device, ToFloats(expected)});
  return static_cast<int32_t*>(device);
}

absl::StatusOr<double*> OperatorRow::Out(const std::string& name, std::vector<int64_t> shape,
                                         const std::vector<double>& expected) {
  GDN_ASSIGN_OR_RETURN(void* device, data_.PoisonedBytes(expected.size() * sizeof(double)));
  outputs_.push_back({name, std::move(shape), Kind::kDouble, device, ToFloats(expected)});
  return static_cast<double*>(device);
}

absl::StatusOr<float*> OperatorRow::InPlace(const std::string& in_name, const std::string& out_name,
                                            std::vector<int64_t> shape, const std::vector<float>& values,
                                            const std::vector<float>& expected) {
  GDN_ASSIGN_OR_RETURN(float* device, In(in_name, shape, values));
  outputs_.push_back({out_name, std::move(shape), Kind::kFloat, device, expected});
  return device;
}

void OperatorRow::Result(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& actual,
                         const std::vector<float>& expected) {
  if (pool_ != nullptr) {
    pool_->Append(actual, expected);
  } else {
    difference_.Merge(Compare(actual, expected));
  }
  if (Dumping()) tensors_.push_back({absl::StrCat("out.", name), std::move(shape), actual});
}

absl::StatusOr<Difference> OperatorRow::Finish() {
  for (Output& output : outputs_) {
    const size_t count = output.expected.size();
    absl::StatusOr<std::vector<float>> actual =
        output.kind == Kind::kFloat ? DownloadAs<float>(data_, output.device, count)
        : output.kind == Kind::kInt ? DownloadAs<int32_t>(data_, output.device, count)
                                    : DownloadAs<double>(data_, output.device, count);
    GDN_RETURN_IF_ERROR(actual.status());
    Result(output.name, std::move(output.shape), *actual, output.expected);
  }
  if (!op_.empty()) GDN_RETURN_IF_ERROR(Dump(op_, attributes_, tensors_));
  return difference_;
}

}  // namespace gdn::parity
