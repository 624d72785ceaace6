#include "client/cpp/step_rows.h"

#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "google/protobuf/descriptor.h"

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

google::protobuf::Message& MessageOf(SessionStep& step) {
  return *std::visit([](auto& request) -> google::protobuf::Message* { return &request; }, step);
}

// Copies what all rows of a Step share.
template <typename From, typename To>
void CopyInput(const From& from, To& to) {
  to.set_layer(from.layer());
  to.set_output_dtype(from.output_dtype());
  to.set_allow_non_finite(from.allow_non_finite());
  if (from.has_hidden_states()) *to.mutable_hidden_states() = from.hidden_states();
  if (from.has_projected()) *to.mutable_projected() = from.projected();
  if (from.has_delta_rule()) *to.mutable_delta_rule() = from.delta_rule();
}

// Replaces the first `count` dimensions.
void ReplaceLeading(int count, std::vector<int64_t> leading, v1::Tensor& tensor) {
  leading.insert(leading.end(), tensor.shape().begin() + count, tensor.shape().end());
  tensor.mutable_shape()->Assign(leading.begin(), leading.end());
}

absl::Status Refused(std::string_view reason, const std::string& field, const std::string& found,
                     const std::string& expected) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason, StrCat(field, " has ", found, ", expected ", expected),
                   {{"field", field}, {"found", found}, {"expected", expected}});
}

// Refuses what RowStep cannot hold. The server checks the rest.
absl::Status CheckStepRow(const v1::StepRow& row, const std::string& what) {
  if (row.kind() < v1::STEP_KIND_DECODE || row.kind() > v1::STEP_KIND_PREFILL) {
    return Refused(reason::kValueOutOfRange, StrCat(what, ".kind"), StrCat("the value ", static_cast<int>(row.kind())),
                   "STEP_KIND_DECODE, STEP_KIND_DRAFT or STEP_KIND_PREFILL");
  }
  if (row.token_count() < 0) {
    return Refused(reason::kInvalidLengths, StrCat(what, ".token_count"), StrCat("the value ", row.token_count()),
                   "0 or more");
  }
  if (row.draft_parents_size() == 0 || (row.kind() == v1::STEP_KIND_DRAFT && row.token_count() > 0)) {
    return absl::OkStatus();
  }
  return Refused(reason::kInvalidLengths, StrCat(what, ".draft_parents"), StrCat(row.draft_parents_size(), " entries"),
                 "none, as the row has no draft");
}

}  // namespace

absl::Status CheckInMessage(google::protobuf::Message& step) {
  std::string shared;
  const auto* const output = step.GetDescriptor()->FindFieldByName("output_shared");
  if (step.GetReflection()->HasField(step, output)) shared = output->name();
  for (const Field& field : InputTensors(step)) {
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

absl::StatusOr<std::vector<RowStep>> CutStep(v1::StepRequest batch) {
  size_t total = 0;
  for (int i = 0; i < batch.rows_size(); ++i) {
    GDN_RETURN_IF_ERROR(CheckStepRow(batch.rows(i), StrCat("rows[", i, "]")));
    total += static_cast<size_t>(batch.rows(i).token_count());
  }
  std::vector<std::string> data;
  for (const auto& [name, tensor] : InputTensors(batch)) {
    if (tensor->shape_size() == 0 || tensor->shape(0) != static_cast<int64_t>(total)) {
      return Refused(reason::kInvalidTensorShape, name,
                     tensor->shape_size() == 0 ? "no shape" : StrCat(tensor->shape(0), " tokens"),
                     StrCat(total, ", those of all rows"));
    }
    if (tensor->data().size() % std::max<size_t>(total, 1) != 0) {
      return Refused(reason::kInvalidTensorData, name, StrCat(tensor->data().size(), " bytes"),
                     StrCat(total, " tokens of equal length"));
    }
    data.push_back(std::move(*tensor->mutable_data()));
    tensor->clear_data();
  }
  std::vector<RowStep> cut;
  size_t first = 0;
  for (const v1::StepRow& row : batch.rows()) {
    RowStep& part = cut.emplace_back();
    part.kind = row.kind();
    std::vector<int64_t> leading = {row.token_count()};
    if (row.kind() == v1::STEP_KIND_PREFILL || row.token_count() == 0) {
      CopyInput(batch, part.alone.emplace<v1::PrefillRequest>());
    } else {
      v1::DecodeRequest& decode = part.alone.emplace<v1::DecodeRequest>();
      CopyInput(batch, decode);
      decode.set_draft(row.kind() == v1::STEP_KIND_DRAFT);
      *decode.mutable_draft_parents() = row.draft_parents();
      leading.insert(leading.begin(), 1);
    }
    if (row.has_accept_before()) {
      const v1::StepAcceptance& accepted = row.accept_before();
      part.accept_before = {.first_tokens = accepted.accepted_tokens(),
                            .path = {accepted.path().begin(), accepted.path().end()}};
    }
    const auto tokens = static_cast<size_t>(row.token_count());
    size_t next = 0;
    for (const Field& field : InputTensors(MessageOf(part.alone))) {
      const std::string& all = data[next++];
      const size_t bytes = all.size() / std::max<size_t>(total, 1);
      field.tensor->set_data(all.data() + first * bytes, tokens * bytes);
      ReplaceLeading(1, leading, *field.tensor);
    }
    first += tokens;
  }
  return cut;
}

v1::StepRequest JoinStep(const std::vector<SessionStep*>& rows) {
  v1::StepRequest joined;
  std::visit([&joined](const auto& first) { CopyInput(first, joined); }, *rows.front());
  const std::vector<Field> into = InputTensors(joined);
  int64_t tokens = StepTokens(*rows.front());
  for (size_t row = 1; row < rows.size(); ++row) {
    tokens += StepTokens(*rows[row]);
    const std::vector<Field> from = InputTensors(MessageOf(*rows[row]));
    for (size_t i = 0; i < into.size(); ++i) into[i].tensor->mutable_data()->append(from[i].tensor->data());
  }
  const int leading = std::holds_alternative<v1::DecodeRequest>(*rows.front()) ? 2 : 1;
  for (const Field& field : into) ReplaceLeading(leading, {tokens}, *field.tensor);
  return joined;
}

}  // namespace gdn
