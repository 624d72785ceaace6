#include "client/cpp/step_rows.h"

#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/message.h"

namespace gdn {
namespace {

struct Field {
  std::string name;
  v1::Tensor* tensor;
};

// The input's tensors, as far as they are set.
std::vector<Field> InputTensors(google::protobuf::Message& step) {
  std::vector<Field> tensors;
  const auto* const oneof = step.GetDescriptor()->FindOneofByName("input");
  const auto* const kind = step.GetReflection()->GetOneofFieldDescriptor(step, oneof);
  if (kind == nullptr) return tensors;
  google::protobuf::Message* const input = step.GetReflection()->MutableMessage(&step, kind);
  std::vector<const google::protobuf::FieldDescriptor*> set;
  input->GetReflection()->ListFields(*input, &set);
  for (const auto* const field : set) {
    if (field->message_type() != v1::Tensor::descriptor()) continue;
    tensors.push_back({field->name(), static_cast<v1::Tensor*>(input->GetReflection()->MutableMessage(input, field))});
  }
  return tensors;
}

// T, by the first tensor.
int64_t TokensOf(v1::DecodeRequest& batch) {
  const std::vector<Field> tensors = InputTensors(batch);
  return tensors.empty() || tensors.front().tensor->shape_size() < 2 ? 0 : tensors.front().tensor->shape(1);
}

absl::Status Refused(std::string_view reason, const std::string& field, const std::string& found,
                     const std::string& expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat(field, " has ", found, ", expected ", expected),
                   {{"field", field}, {"found", found}, {"expected", expected}});
}

}  // namespace

absl::Status CheckInMessage(SessionStep& step) {
  std::string shared;
  const bool output = std::visit([](const auto& request) { return request.has_output_shared(); }, step);
  if (output) shared = "output_shared";
  google::protobuf::Message& message =
      *std::visit([](auto& request) -> google::protobuf::Message* { return &request; }, step);
  for (const Field& field : InputTensors(message)) {
    if (field.tensor->has_shared()) shared = field.name;
  }
  if (shared.empty()) return absl::OkStatus();
  return Refused(reason::kInvalidSharedRange, shared, "a range of shared memory",
                 "the bytes in the message, as the step may have to be replayed");
}

absl::StatusOr<std::vector<v1::DecodeRequest>> CutRows(v1::DecodeRequest batch, int rows) {
  const std::vector<int32_t> lengths(batch.lengths().begin(), batch.lengths().end());
  if (!lengths.empty() && static_cast<int>(lengths.size()) != rows) {
    return Refused(reason::kInvalidLengths, "lengths", StrCat(lengths.size(), " entries"), StrCat(rows, ", or none"));
  }
  batch.clear_sessions();
  batch.clear_session_epochs();
  batch.clear_expected_token_counts();
  batch.clear_lengths();
  const std::vector<int32_t> parents(batch.draft_parents().begin(), batch.draft_parents().end());
  batch.clear_draft_parents();
  batch.clear_request_id();
  batch.clear_partial_ok();
  std::vector<std::string> data;
  for (const auto& [name, tensor] : InputTensors(batch)) {
    if (tensor->shape_size() == 0 || tensor->shape(0) != rows) {
      return Refused(reason::kInvalidTensorShape, name,
                     tensor->shape_size() == 0 ? "no shape" : StrCat(tensor->shape(0), " rows"),
                     StrCat(rows, ", one for each session"));
    }
    if (tensor->data().size() % static_cast<size_t>(rows) != 0) {
      return Refused(reason::kInvalidTensorData, name, StrCat(tensor->data().size(), " bytes"),
                     StrCat(rows, " rows of equal length"));
    }
    tensor->set_shape(0, 1);
    data.push_back(std::move(*tensor->mutable_data()));
    tensor->clear_data();
  }
  // Of each row's tokens, or of one tree that all rows share: the server tells by the tokens which, and refuses others.
  const bool of_rows = rows > 1 && parents.size() % static_cast<size_t>(rows) == 0 &&
                       static_cast<int64_t>(parents.size()) != TokensOf(batch);
  std::vector<v1::DecodeRequest> cut(static_cast<size_t>(rows), batch);
  for (size_t row = 0; row < cut.size(); ++row) {
    if (!lengths.empty()) cut[row].add_lengths(lengths[row]);
    const size_t own = of_rows ? parents.size() / cut.size() : parents.size();
    const auto first = parents.begin() + static_cast<std::ptrdiff_t>(of_rows ? row * own : 0);
    cut[row].mutable_draft_parents()->Add(first, first + static_cast<std::ptrdiff_t>(own));
    size_t next = 0;
    for (const auto& [name, tensor] : InputTensors(cut[row])) {
      const std::string& all = data[next++];
      const size_t bytes = all.size() / cut.size();
      tensor->set_data(all.data() + row * bytes, bytes);
    }
  }
  return cut;
}

v1::DecodeRequest JoinRows(const std::vector<v1::DecodeRequest*>& rows) {
  v1::DecodeRequest joined = *rows.front();
  const std::vector<Field> into = InputTensors(joined);
  for (const Field& field : into) {
    field.tensor->set_shape(0, static_cast<int64_t>(rows.size()));
    field.tensor->mutable_data()->reserve(field.tensor->data().size() * rows.size());
  }
  for (size_t row = 1; row < rows.size(); ++row) {
    joined.mutable_lengths()->MergeFrom(rows[row]->lengths());
    joined.mutable_draft_parents()->MergeFrom(rows[row]->draft_parents());
    const std::vector<Field> from = InputTensors(*rows[row]);
    for (size_t i = 0; i < into.size(); ++i) into[i].tensor->mutable_data()->append(from[i].tensor->data());
  }
  return joined;
}

}  // namespace gdn
