// Rows of one Step in a soak: each session's own tokens, kind and acceptance.
//
// Thread safety: plain values. Ownership: values own their tensors.
//
//   std::vector<MixedRow> rows = {{.step = decode}, {.step = prefill}, {.step = draft, .accept_before = two}};
//   v1::StepRequest request = MixedStepOf(rows);  // the caller may add names, epochs, counts and an id
//   outputs = OutputsOf(rows, reply.output());
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "client/cpp/kept_steps.h"
#include "gdn/v1/step.pb.h"

namespace gdn {

struct MixedRow {
  SessionStep step;  // a Prefill, or a DecodeRequest of one row, which may be a draft
  std::optional<DraftChoice> accept_before = std::nullopt;
};

v1::StepRequest MixedStepOf(std::vector<MixedRow> rows);
// Returns the bytes of each row's tokens.
std::vector<std::string> OutputsOf(const std::vector<MixedRow>& rows, const v1::Tensor& output);

}  // namespace gdn
