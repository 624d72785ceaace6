#include "tests/kernels/tree_sessions.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "gtest/gtest.h"
#include "kernels/layer/accept_draft.h"

namespace gdn {

std::string TreeSetup::ToString() const {
  return std::string(InputKindName(kind)) + " " + LayerDimsToString(dims) + ", inputs " +
         std::string(DTypeName(inputs)) + ", bases " + std::string(DTypeName(base));
}

TreeSessions::TreeSessions(Backend& backend, const TreeSetup& setup, int32_t slots)
    : backend_(backend),
      setup_(setup),
      problem_({.dims = setup.dims, .layout = setup.layout, .max_draft = setup.max_draft}, /*slots=*/1),
      runner_(backend) {
  const StateLayout layout = *StateLayout::Make(setup.dims, setup.max_draft, setup.base);
  if (setup.memory == nullptr) memory_ = AlignedBuffer<float>(static_cast<size_t>(slots * layout.slot_floats()));
  pool_ = {.layout = layout, .data = setup.memory == nullptr ? memory_.data() : setup.memory, .slot_count = slots};
  std::fill_n(pool_.data, slots * layout.slot_floats(), 0.0f);
  std::array<LayerField, kMaxStepFields> storage;
  const auto fields = LayerFields(setup.kind, setup.dims, storage);
  fields_.assign(fields.begin(), fields.end());
  tokens_.resize(fields_.size());
  row_bytes_ = static_cast<size_t>(LayerOutputFeatures(setup.kind, setup.dims)) * DTypeSize(setup.inputs);
}

std::vector<int32_t> TreeSessions::Make(int32_t count) {
  for (size_t f = 0; f < fields_.size(); ++f) {
    std::vector<float> values = random_.Normal(count * fields_[f].features);
    // g of the bare rule is a log decay, beta a strength.
    for (float& value : values) {
      if (fields_[f].tensor == &LayerStep::g) value = -std::abs(value);
      if (fields_[f].tensor == &LayerStep::beta) value = 1 / (1 + value * value);
    }
    const size_t at = tokens_[f].size();
    tokens_[f].resize(at + values.size() * DTypeSize(setup_.inputs));
    ConvertFromFloat(values.data(), values.size(), setup_.inputs, tokens_[f].data() + at);
  }
  std::vector<int32_t> made(static_cast<size_t>(count));
  for (int32_t& token : made) token = made_++;
  return made;
}

std::vector<char> TreeSessions::Decode(const std::vector<Call>& calls, bool draft) {
  std::vector<int32_t> cu_seqlens = {0}, slots, base_slots, log_lengths, parents;
  std::vector<int64_t> token_counts;
  std::vector<std::vector<char>> inputs(fields_.size());
  bool any_parents = false;
  for (const Call& call : calls) {
    const Session session = call.session == nullptr ? Session{.slot = -1} : *call.session;
    cu_seqlens.push_back(cu_seqlens.back() + static_cast<int32_t>(call.tokens.size()));
    slots.push_back(session.slot);
    base_slots.push_back(session.base_slot < 0 ? session.slot : session.base_slot);
    log_lengths.push_back(session.log_length);
    token_counts.push_back(session.token_count);
    any_parents |= !call.parents.empty();
    for (int32_t t = 0; t < static_cast<int32_t>(call.tokens.size()); ++t) {
      parents.push_back(call.parents.empty() ? t - 1 : call.parents[static_cast<size_t>(t)]);
      for (size_t f = 0; f < fields_.size(); ++f) {
        const size_t bytes = static_cast<size_t>(fields_[f].features) * DTypeSize(setup_.inputs);
        const char* from = tokens_[f].data() + bytes * static_cast<size_t>(call.tokens[static_cast<size_t>(t)]);
        inputs[f].insert(inputs[f].end(), from, from + bytes);
      }
    }
  }
  std::vector<char> output(static_cast<size_t>(cu_seqlens.back()) * row_bytes_, 77);
  LayerStep step{.weights = setup_.kind == InputKind::kDeltaRule ? nullptr : &problem_.weights(), .pool = pool_};
  step.batch = {
      .sequences = static_cast<int32_t>(slots.size()), .cu_seqlens = cu_seqlens.data(), .slots = slots.data()};
  step.token_counts = token_counts.data();
  step.kind = setup_.kind;
  step.delta_rule.scale = 0.25f;
  step.delta_rule.use_qk_l2norm = true;
  step.delta_rule.max_beta = 1.0f;
  step.base_slots = base_slots.data();
  step.draft = draft;
  if (any_parents) step.draft_parents = parents.data();
  for (size_t f = 0; f < fields_.size(); ++f) step.*fields_[f].tensor = InputTensor(inputs[f].data(), setup_.inputs);
  step.output = {output.data(), setup_.inputs};
  status_ = runner_.Decode(step, log_lengths.data());
  if (status_.ok()) status_ = backend_.Synchronize();
  EXPECT_EQ(status_, absl::OkStatus());
  for (size_t i = 0; i < calls.size(); ++i) {
    if (calls[i].session == nullptr) continue;
    Session& session = *calls[i].session;
    const auto tokens = static_cast<int32_t>(calls[i].tokens.size());
    if (draft) {
      EXPECT_EQ(log_lengths[i], session.log_length + tokens);
      continue;
    }
    if (log_lengths[i] < session.log_length + tokens) session.base_slot = -1;
    session.log_length = log_lengths[i];
    session.token_count += tokens;
  }
  return output;
}

TreeSessions::Session TreeSessions::Copy(const Session& from, int32_t slot) {
  EXPECT_EQ(backend_.Copy(pool_.slot(slot), pool_.slot(from.slot), static_cast<size_t>(pool_.layout.slot_bytes())),
            absl::OkStatus());
  Session copy = from;
  copy.slot = slot;
  return copy;
}

void TreeSessions::Accept(Session& session, const std::vector<int32_t>& path) {
  const DraftPath draft{
      .slot = session.slot, .token_count = session.token_count, .log_length = session.log_length, .path = path};
  EXPECT_EQ(MoveDraftPaths(backend_, pool_, {draft}), absl::OkStatus());
  session.token_count += static_cast<int64_t>(path.size());
  session.log_length += static_cast<int32_t>(path.size());
  const int32_t base = session.base_slot < 0 ? session.slot : session.base_slot;
  uint8_t folded = 0;
  EXPECT_EQ(FoldAccepted(backend_, {.pool = pool_,
                                    .count = 1,
                                    .slots = &session.slot,
                                    .base_slots = &base,
                                    .log_lengths = &session.log_length,
                                    .folded = &folded}),
            absl::OkStatus());
  if (folded != 0) session.base_slot = -1;
}

SlotImage TreeSessions::Read(const Session& session) {
  SlotImage image = *ReadSlot(backend_, pool_, session.slot, session.log_length, session.token_count);
  if (session.base_slot >= 0) image.base = ReadSlot(backend_, pool_, session.base_slot, 0, 0)->base;
  return image;
}

std::vector<float> TreeSessions::ReadAll(int32_t slot) {
  std::vector<float> floats(static_cast<size_t>(pool_.layout.slot_floats()));
  EXPECT_EQ(backend_.CopyOut(floats.data(), pool_.slot(slot), floats.size() * sizeof(float)), absl::OkStatus());
  EXPECT_EQ(backend_.Synchronize(), absl::OkStatus());
  return floats;
}

std::vector<char> TreeSessions::Row(const std::vector<char>& output, size_t row) const {
  const auto at = output.begin() + static_cast<std::ptrdiff_t>(row * row_bytes_);
  return {at, at + static_cast<std::ptrdiff_t>(row_bytes_)};
}

std::vector<int32_t> RandomParents(int32_t tokens, Random& random) {
  // From bushes to what is nearly a chain.
  const int32_t reach = std::max(1, random.NextInt(1, tokens));
  std::vector<int32_t> parents;
  for (int32_t i = 0; i < tokens; ++i) parents.push_back(random.NextInt(std::max(-1, i - reach), i - 1));
  return parents;
}

std::vector<int32_t> PathTo(const std::vector<int32_t>& parents, int32_t token) {
  std::vector<int32_t> path;
  for (; token >= 0; token = parents[static_cast<size_t>(token)]) path.insert(path.begin(), token);
  return path;
}

}  // namespace gdn
