#include "base/tensor_view.h"

#include <functional>
#include <limits>
#include <numeric>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/string_cat.h"

namespace gdn {

int64_t TensorView::ElementCount() const {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
}

absl::StatusOr<int64_t> CheckedElementCount(absl::Span<const int64_t> shape) {
  constexpr int64_t kMaxElements = std::numeric_limits<int64_t>::max() / 8;
  bool empty = false;
  int64_t count =
      1;  // over the dimensions that are not zero, so that no partial product of an accepted shape overflows
  for (size_t i = 0; i < shape.size(); ++i) {
    const int64_t dim = shape[i];
    if (dim < 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
                       StrCat("shape ", ShapeToString(shape), " has a negative dimension at index ", i,
                              "; expected every dimension to be at least 0"));
    }
    if (dim == 0) {
      empty = true;
      continue;
    }
    if (count > kMaxElements / dim) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kShapeOverflow,
                       StrCat("the number of elements of shape ", ShapeToString(shape), " overflows; expected at most ",
                              kMaxElements, " elements"));
    }
    count *= dim;
  }
  return empty ? 0 : count;
}

std::string ShapeToString(absl::Span<const int64_t> shape) { return StrCat("[", absl::StrJoin(shape, ", "), "]"); }

}  // namespace gdn
