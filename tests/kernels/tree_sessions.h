// Sessions of one layer that decode chains and trees of given tokens, with any kind of input and dtype. Tests of trees
// compare their bits with those of chains.
//
// Thread safety: for one thread. Ownership: owns weights, slots and tokens; the backend must outlive it.
//
//   TreeSessions sessions(backend, {.kind = InputKind::kHiddenStates}, /*slots=*/3);
//   Session a{.slot = 0};
//   const std::vector<int32_t> tokens = sessions.Make(5);
//   const std::vector<char> y = sessions.Decode(a, tokens, /*draft=*/true, /*parents=*/{-1, 0, 0, 1, 1});
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kernels/layer/gdn_layer.h"
#include "tests/kernels/layer_problem.h"
#include "tests/support/aligned_buffer.h"

namespace gdn {

struct TreeSetup {
  InputKind kind = InputKind::kHiddenStates;
  // Grouped heads, K != V.
  LayerDims dims = {.key_heads = 1, .value_heads = 2, .key_dim = 8, .value_dim = 5, .conv_width = 4, .hidden_size = 12};
  DType inputs = DType::kF32;
  DType base = DType::kF32;
  ProjectionLayout layout = ProjectionLayout::kInterleaved;
  int32_t max_draft = 24;
  float* memory = nullptr;  // memory for the slots; null: TreeSessions allocates it

  std::string ToString() const;
};

class TreeSessions {
 public:
  struct Session {
    int32_t slot = 0;
    int32_t base_slot = -1;  // slot with the base; below 0: `slot`
    int64_t token_count = 0;
    int32_t log_length = 0;
  };
  struct Call {
    Session* session = nullptr;        // null: padding
    std::vector<int32_t> tokens = {};  // numbers that Make returned
    std::vector<int32_t> parents = {};
  };

  TreeSessions(Backend& backend, const TreeSetup& setup, int32_t slots);

  // Makes new random tokens and returns their numbers.
  std::vector<int32_t> Make(int32_t count);
  // Decodes and returns the output's bytes, row after row. A draft does not advance the sessions. Errors fail the test.
  std::vector<char> Decode(const std::vector<Call>& calls, bool draft);
  std::vector<char> Decode(Session& session, const std::vector<int32_t>& tokens, bool draft,
                           const std::vector<int32_t>& parents = {}) {
    return Decode({{.session = &session, .tokens = tokens, .parents = parents}}, draft);
  }
  absl::Status status() const { return status_; }  // of the last Decode

  // Copies the session `from` to another slot.
  Session Copy(const Session& from, int32_t slot);
  // Accepts the draft's tokens of this path.
  void Accept(Session& session, const std::vector<int32_t>& path);
  // Returns the session's state; unused parts of its slot are left out.
  SlotImage Read(const Session& session);
  std::vector<float> ReadAll(int32_t slot);

  size_t row_bytes() const { return row_bytes_; }
  std::vector<char> Row(const std::vector<char>& output, size_t row) const;
  const StatePoolView& pool() const { return pool_; }
  Backend& backend() { return backend_; }

 private:
  Backend& backend_;
  const TreeSetup setup_;
  LayerProblem problem_;  // only its weights are used
  GdnLayerRunner runner_;
  AlignedBuffer<float> memory_;
  StatePoolView pool_;
  Random random_{29};
  std::vector<LayerField> fields_;
  std::vector<std::vector<char>> tokens_;  // by field
  int32_t made_ = 0;
  size_t row_bytes_ = 0;
  absl::Status status_;
};

// Returns random parents for a draft of `tokens` tokens. All kinds of trees occur.
std::vector<int32_t> RandomParents(int32_t tokens, Random& random);
// Returns the path from a root to the token.
std::vector<int32_t> PathTo(const std::vector<int32_t>& parents, int32_t token);

}  // namespace gdn
