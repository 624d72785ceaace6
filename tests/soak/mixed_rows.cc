#include "tests/soak/mixed_rows.h"

#include "client/cpp/step_rows.h"

namespace gdn {

v1::StepRequest MixedStepOf(std::vector<MixedRow> rows) {
  std::vector<SessionStep*> parts;
  for (MixedRow& row : rows) parts.push_back(&row.step);
  v1::StepRequest request = JoinStep(parts);
  for (const MixedRow& row : rows) {
    v1::StepRow* const added = request.add_rows();
    added->set_token_count(static_cast<int32_t>(StepTokens(row.step)));
    added->set_kind(v1::STEP_KIND_PREFILL);
    if (const auto* const decode = std::get_if<v1::DecodeRequest>(&row.step)) {
      added->set_kind(decode->draft() ? v1::STEP_KIND_DRAFT : v1::STEP_KIND_DECODE);
      *added->mutable_draft_parents() = decode->draft_parents();
    }
    if (!row.accept_before.has_value()) continue;
    v1::StepAcceptance* const accepted = added->mutable_accept_before();
    accepted->set_accepted_tokens(row.accept_before->first_tokens);
    accepted->mutable_path()->Add(row.accept_before->path.begin(), row.accept_before->path.end());
  }
  return request;
}

std::vector<std::string> OutputsOf(const std::vector<MixedRow>& rows, const v1::Tensor& output) {
  size_t tokens = 0;
  for (const MixedRow& row : rows) tokens += static_cast<size_t>(StepTokens(row.step));
  const size_t bytes = tokens == 0 ? 0 : output.data().size() / tokens;
  std::vector<std::string> outputs;
  size_t first = 0;
  for (const MixedRow& row : rows) {
    const auto own = static_cast<size_t>(StepTokens(row.step));
    // No row with tokens has succeeded if the whole is empty.
    outputs.push_back(output.data().empty() ? "" : output.data().substr(first * bytes, own * bytes));
    first += own;
  }
  return outputs;
}

}  // namespace gdn
