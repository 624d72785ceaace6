// Sessions for unit tests: a null backend, a store, and specs of a small model and a small operator.
//
// Thread safety: for one thread to make. Ownership: owns all; sessions must go first.
//
//   SessionWorld world;
//   auto session = world.MakeSession(OperatorSessionSpec(2));
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/null/null_backend.h"
#include "server/session/session.h"

namespace gdn {

inline SessionSpec OperatorSessionSpec(int layers = 1, int32_t value_dim = 8) {
  SessionSpec spec;
  spec.dims = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = value_dim};
  for (int32_t layer = 0; layer < layers; ++layer) spec.layers.push_back(layer);
  return spec;
}

// GDN layers as a hybrid model has them: not all, and not from 0 on without gaps.
inline SessionSpec ModelSessionSpec() {
  SessionSpec spec;
  spec.model = "m";
  spec.fingerprint = "f";
  spec.dims = {.key_heads = 2, .value_heads = 4, .key_dim = 8, .value_dim = 8, .conv_width = 4, .hidden_size = 16};
  spec.layers = {1, 2, 5};
  return spec;
}

// A delta_rule step without a request id.
inline StepRequest PlainStep(int32_t layer = 0) {
  StepRequest request;
  request.layer = layer;
  request.kind = InputKind::kDeltaRule;
  return request;
}

struct SessionWorld {
  std::shared_ptr<Session> MakeSession(SessionSpec spec, const std::string& id = "a") {
    SlotReservation slots = store.Reserve(spec.dims, static_cast<int32_t>(spec.layers.size())).value();
    return std::make_shared<Session>(id, std::move(spec), /*affinity=*/"", std::move(slots));
  }

  std::unique_ptr<Backend> backend = MakeNullBackend();
  StateStore store{*backend, {.budget_bytes = int64_t{1} << 22, .max_draft = 8}};
};

}  // namespace gdn
