#include "tools/gdnctl/replay/recorded_input.h"

#include <utility>

#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/tensor_view.h"
#include "client/cpp/tensor_codec.h"

namespace gdn {
namespace {

std::string NameIfThere(const SafetensorsFile& file, std::string name) {
  return file.Contains(name) ? std::move(name) : std::string();
}

}  // namespace

std::string RecordedPrefill(const SafetensorsFile& file, int32_t layer) {
  return NameIfThere(file, StrCat("layer.", layer, ".prefill.in"));
}

std::string RecordedDecode(const SafetensorsFile& file, int32_t layer, int64_t step) {
  return NameIfThere(file, StrCat("layer.", layer, ".decode.", step, ".in"));
}

absl::StatusOr<v1::Tensor> RecordedSequences(const SafetensorsFile& file, const std::string& name, int64_t first,
                                             int64_t count) {
  GDN_ASSIGN_OR_RETURN(const TensorView view, file.Tensor(name));
  if (view.shape.size() != 3) {
    return absl::InvalidArgumentError(
        StrCat("'", name, "' has shape ", ShapeToString(view.shape), ", expected [sequences, tokens, hidden size]"));
  }
  const int64_t sequences = view.shape[0];
  if (first < 0 || count < 1 || first > sequences - count) {
    return absl::InvalidArgumentError(StrCat("'", name, "' has ", sequences, " sequences; sequences ", first, " to ",
                                             first + count - 1,
                                             " are asked for (--sequence, and one for each session)"));
  }
  v1::Tensor tensor;
  tensor.set_dtype(ToProtoDType(view.dtype));
  tensor.add_shape(count);
  tensor.add_shape(view.shape[1]);
  tensor.add_shape(view.shape[2]);
  const size_t bytes = view.data.size() / static_cast<size_t>(sequences);
  tensor.set_data(
      std::string(view.data.substr(static_cast<size_t>(first) * bytes, static_cast<size_t>(count) * bytes)));
  return tensor;
}

absl::StatusOr<v1::Tensor> RecordedSequence(const SafetensorsFile& file, const std::string& name, int64_t sequence) {
  GDN_ASSIGN_OR_RETURN(v1::Tensor tensor, RecordedSequences(file, name, sequence, 1));
  tensor.mutable_shape()->erase(tensor.shape().begin());
  return tensor;
}

}  // namespace gdn
