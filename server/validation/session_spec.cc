#include "server/validation/session_spec.h"

#include <algorithm>
#include <string>

#include "base/bounded_text.h"
#include "base/count_limits.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "server/validation/tensor.h"

namespace gdn {
namespace {

constexpr int32_t kMaxOperatorLayers = 1024;
// A lease's grace. Less than a second would make a pause of a client the end of its sessions.
constexpr absl::Duration kLeastGrace = absl::Seconds(1);
constexpr absl::Duration kMostGrace = absl::Hours(7 * 24);
constexpr absl::Duration kDefaultGrace = absl::Seconds(60);

absl::Status InvalidSpec(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, message, {{"field", std::string(field)}});
}

absl::StatusOr<TensorView> CheckState(const v1::Tensor& tensor, std::string_view field,
                                      const std::vector<int64_t>& shape) {
  GDN_ASSIGN_OR_RETURN(TensorView view, CheckTensor(tensor, tensor.data(), field, shape));
  GDN_RETURN_IF_ERROR(CheckFinite(field, view, 0, view.ElementCount()));
  return view;
}

}  // namespace

v1::DecayKind ToProto(DecayKind decay) {
  return decay == DecayKind::kPerChannel ? v1::DECAY_KIND_PER_CHANNEL : v1::DECAY_KIND_PER_HEAD;
}

absl::StatusOr<OperatorDims> CheckOperatorSpec(const v1::OperatorSpec& spec) {
  OperatorDims result;
  result.dims = {.key_heads = spec.key_heads(),
                 .value_heads = spec.value_heads(),
                 .key_dim = spec.key_dim(),
                 .value_dim = spec.value_dim()};
  GDN_RETURN_IF_ERROR(ValidateLayerDims(result.dims));
  if (!v1::DecayKind_IsValid(spec.decay())) {
    return InvalidSpec("decay", StrCat("decay is ", static_cast<int>(spec.decay()),
                                       ", expected DECAY_KIND_PER_HEAD (1) or DECAY_KIND_PER_CHANNEL (2)"));
  }
  if (spec.decay() == v1::DECAY_KIND_PER_CHANNEL) result.dims.decay = DecayKind::kPerChannel;
  result.layer_count = spec.layer_count() == 0 ? 1 : spec.layer_count();
  if (result.layer_count < 1 || result.layer_count > kMaxOperatorLayers) {
    return InvalidSpec("layer_count",
                       StrCat("layer_count is ", spec.layer_count(), ", expected 1 .. ", kMaxOperatorLayers));
  }
  return result;
}

absl::StatusOr<std::vector<int32_t>> CheckSessionLayers(const v1::CreateSessionRequest& request,
                                                        const std::vector<int32_t>& served) {
  if (request.layers().empty()) return served;
  if (!request.has_model()) {
    return InvalidSpec("layers",
                       "layers are set for an operator session, whose layers are 0 .. layer_count - 1; leave "
                       "layers out");
  }
  std::vector<int32_t> layers;
  for (const int32_t layer : request.layers()) {
    if (!std::binary_search(served.begin(), served.end(), layer)) {
      const std::string expected = NumberRanges(served, kMostListBytes);
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
                       StrCat("layers has ", layer, ", the Gated DeltaNet layers that are served here are ", expected),
                       {{"layer", StrCat(layer)}, {"expected", expected}});
    }
    if (!layers.empty() && layer <= layers.back()) {
      return InvalidSpec(
          "layers", StrCat("layers has ", layer, " after ", layers.back(), "; expected ascending layers, each once"));
    }
    layers.push_back(layer);
  }
  return layers;
}

absl::StatusOr<std::vector<CheckedInitialState>> CheckInitialStates(
    const google::protobuf::RepeatedPtrField<v1::InitialState>& states, const LayerDims& dims,
    const std::vector<int32_t>& layers) {
  std::vector<CheckedInitialState> checked;
  for (const v1::InitialState& state : states) {
    if (!std::binary_search(layers.begin(), layers.end(), state.layer())) {
      const std::string expected = NumberRanges(layers, kMostListBytes);
      return MakeError(
          absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn,
          StrCat("initial_states names layer ", state.layer(), ", the Gated DeltaNet layers are ", expected),
          {{"layer", StrCat(state.layer())}, {"expected", expected}});
    }
    if (state.token_count() < 0 || state.token_count() > kMaxTokenCount) {
      return InvalidSpec("token_count",
                         StrCat("token_count is ", state.token_count(), ", expected 0 .. ", kMaxTokenCount));
    }
    CheckedInitialState& entry = checked.emplace_back();
    entry.layer = state.layer();
    entry.token_count = state.token_count();
    if (state.has_recurrent_state()) {
      GDN_ASSIGN_OR_RETURN(entry.recurrent_state, CheckState(state.recurrent_state(), "recurrent_state",
                                                             {dims.value_heads, dims.key_dim, dims.value_dim}));
    }
    if (state.has_conv_state()) {
      if (!dims.has_layer())
        return InvalidSpec("conv_state", "an operator session has no convolution; leave conv_state out");
      GDN_ASSIGN_OR_RETURN(entry.conv_state,
                           CheckState(state.conv_state(), "conv_state", {dims.conv_channels(), dims.conv_width - 1}));
    }
  }
  std::ranges::sort(checked, {}, &CheckedInitialState::layer);
  const auto twice = std::ranges::adjacent_find(checked, {}, &CheckedInitialState::layer);
  if (twice == checked.end()) return checked;
  return InvalidSpec("initial_states", StrCat("initial_states names layer ", twice->layer, " twice"));
}

absl::StatusOr<absl::Duration> CheckTimeToLive(std::string_view field, bool set,
                                               const google::protobuf::Duration& value) {
  if (!set) return absl::InfiniteDuration();
  const absl::Duration duration = absl::Seconds(value.seconds()) + absl::Nanoseconds(value.nanos());
  if (duration <= absl::ZeroDuration()) {
    return InvalidSpec(field,
                       StrCat(field, " is ", absl::ToDoubleSeconds(duration), " s, expected more than 0, or none"));
  }
  return duration;
}

absl::StatusOr<absl::Duration> CheckGrace(bool set, const google::protobuf::Duration& value) {
  if (!set) return kDefaultGrace;
  const absl::Duration grace = absl::Seconds(value.seconds()) + absl::Nanoseconds(value.nanos());
  if (grace < kLeastGrace || grace > kMostGrace) {
    return InvalidSpec("grace", StrCat("grace is ", absl::ToDoubleSeconds(grace), " s, expected ",
                                       absl::ToInt64Seconds(kLeastGrace), " .. ", absl::ToInt64Seconds(kMostGrace),
                                       ", or none for ", absl::ToInt64Seconds(kDefaultGrace)));
  }
  return grace;
}

Hash128 HashCreateRequest(const v1::CreateSessionRequest& request) {
  Hasher hasher;
  hasher.UpdateField(request.model());
  const v1::OperatorSpec& spec = request.operator_();
  for (const int64_t value :
       {int64_t{request.spec_case()}, int64_t{spec.key_heads()}, int64_t{spec.value_heads()}, int64_t{spec.key_dim()},
        int64_t{spec.value_dim()}, int64_t{spec.layer_count() == 0 ? 1 : spec.layer_count()}}) {
    hasher.UpdateInt(value);
  }
  // An unset decay means one decay per head.
  hasher.UpdateInt(spec.decay() == v1::DECAY_KIND_PER_CHANNEL ? 1 : 0);
  hasher.UpdateField(request.affinity());
  for (const google::protobuf::Duration* ttl : {&request.idle_ttl(), &request.max_lifetime()}) {
    hasher.UpdateInt(ttl->seconds());
    hasher.UpdateInt(ttl->nanos());
  }
  for (const v1::InitialState& state : request.initial_states()) {
    hasher.UpdateInt(state.layer());
    hasher.UpdateInt(state.token_count());
    for (const v1::Tensor* tensor : {&state.recurrent_state(), &state.conv_state()}) {
      hasher.UpdateInt(tensor->dtype());
      hasher.UpdateField(tensor->data());
    }
  }
  hasher.UpdateInt(request.prefix().input_kind());
  for (const v1::PrefixSegment& segment : request.prefix().segments()) {
    hasher.UpdateInt(segment.tokens());
    hasher.UpdateField(segment.content_sha256());
  }
  // Servers of other releases have stored hashes of requests without layers.
  if (!request.layers().empty()) hasher.UpdateField("layers");
  for (const int32_t layer : request.layers()) hasher.UpdateInt(layer);
  if (!request.lease().empty()) {
    hasher.UpdateField("lease");
    hasher.UpdateField(request.lease());
  }
  if (!request.snapshot().empty()) {
    hasher.UpdateField("snapshot");
    hasher.UpdateField(request.snapshot());
  }
  return hasher.Finish();
}

}  // namespace gdn
