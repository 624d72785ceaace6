// Converts CreateSession's messages to checked values.
//
// Thread safety: free functions. Ownership: CheckedInitialState views the message, other results are copies.
//
//   GDN_ASSIGN_OR_RETURN(OperatorDims op, CheckOperatorSpec(request.operator_()));
//   GDN_ASSIGN_OR_RETURN(auto states, CheckInitialStates(request.initial_states(), dims, layers));
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/hash.h"
#include "base/layer_dims.h"
#include "base/tensor_view.h"
#include "gdn/v1/session.pb.h"
#include "gdn/v1/tensor.pb.h"
#include "google/protobuf/duration.pb.h"

namespace gdn {

struct OperatorDims {
  LayerDims dims;  // conv_width and hidden_size are 0
  int32_t layer_count = 1;
};

struct CheckedInitialState {
  int32_t layer = 0;
  int64_t token_count = 0;
  TensorView recurrent_state;  // [HV, K, V]; no elements: zero
  TensorView conv_state;       // [C, W - 1]; no elements: zero
};

v1::DecayKind ToProto(DecayKind decay);

// Returns the dims and the number of layers (1 if the spec sets none) of an operator session. INVALID_ARGUMENT
// (INVALID_SPEC: field) if they are not valid.
absl::StatusOr<OperatorDims> CheckOperatorSpec(const v1::OperatorSpec& spec);

// Returns the layers of a new session: the request's, or all `served` ones if it names none. INVALID_ARGUMENT
// (LAYER_NOT_GDN) for a layer that is not among `served`, which ascend; (INVALID_SPEC: layers) if the request's layers
// do not ascend, or belong to an operator.
absl::StatusOr<std::vector<int32_t>> CheckSessionLayers(const v1::CreateSessionRequest& request,
                                                        const std::vector<int32_t>& served);

// Returns the initial states of a new session, ascending by layer, as views of the message; layers that it does not
// name have none. `layers`: the session's GDN layers, ascending. INVALID_ARGUMENT: LAYER_NOT_GDN, INVALID_SPEC (a layer
// twice, an invalid token_count, a conv_state for an operator), NON_FINITE_INPUT and the reasons of CheckTensor.
absl::StatusOr<std::vector<CheckedInitialState>> CheckInitialStates(
    const google::protobuf::RepeatedPtrField<v1::InitialState>& states, const LayerDims& dims,
    const std::vector<int32_t>& layers);

// Returns a time to live, which is infinite if `set` is false. INVALID_ARGUMENT (INVALID_SPEC: field) if it is not
// above 0.
absl::StatusOr<absl::Duration> CheckTimeToLive(std::string_view field, bool set,
                                               const google::protobuf::Duration& value);

// Returns the grace of a new lease: 1 s .. 7 days, or 60 s if `set` is false. INVALID_ARGUMENT (INVALID_SPEC: grace).
absl::StatusOr<absl::Duration> CheckGrace(bool set, const google::protobuf::Duration& value);

// Returns a hash that says if a request repeats an earlier one. It is equal for equal spec, layers, affinity, times to
// live, initial states, prefix, lease and snapshot, whatever the session id.
Hash128 HashCreateRequest(const v1::CreateSessionRequest& request);

}  // namespace gdn
