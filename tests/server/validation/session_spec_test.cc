#include "server/validation/session_spec.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "base/count_limits.h"
#include "base/dtype.h"
#include "base/error.h"
#include "tests/support/assert_ok.h"

namespace gdn::session_spec_test {
namespace {

const LayerDims kDims{
    .key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4, .conv_width = 4, .hidden_size = 8};
const LayerDims kOperatorDims{.key_heads = 1, .value_heads = 2, .key_dim = 3, .value_dim = 4};
const std::vector<int32_t> kLayers = {0, 2};

v1::OperatorSpec Spec(int h, int hv, int k, int v, int layers = 0) {
  v1::OperatorSpec spec;
  spec.set_key_heads(h);
  spec.set_value_heads(hv);
  spec.set_key_dim(k);
  spec.set_value_dim(v);
  spec.set_layer_count(layers);
  return spec;
}

v1::Tensor Tensor(const std::vector<int64_t>& shape, const std::vector<float>& values) {
  v1::Tensor tensor;
  tensor.set_dtype(v1::DTYPE_F32);
  for (const int64_t dim : shape) tensor.add_shape(dim);
  tensor.set_data(values.data(), values.size() * sizeof(float));
  return tensor;
}

v1::Tensor RecurrentState(float value = 1.0f) { return Tensor({2, 3, 4}, std::vector<float>(24, value)); }
v1::Tensor ConvState(float value = 1.0f) { return Tensor({14, 3}, std::vector<float>(42, value)); }

TEST(OperatorSpec, IsTakenOverWithItsDefaults) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto checked, CheckOperatorSpec(Spec(2, 6, 48, 32)));
  EXPECT_EQ(checked.layer_count, 1);
  EXPECT_EQ(checked.dims, (LayerDims{.key_heads = 2, .value_heads = 6, .key_dim = 48, .value_dim = 32}));
  EXPECT_FALSE(checked.dims.has_layer());
  EXPECT_EQ(CheckOperatorSpec(Spec(1, 1, 1, 1, 1024))->layer_count, 1024);
}

TEST(OperatorSpec, DecaysAreByHeadUnlessTheyAreSaidToBeByChannel) {
  v1::OperatorSpec spec = Spec(2, 6, 48, 32);
  EXPECT_EQ(CheckOperatorSpec(spec)->dims.decay, DecayKind::kPerHead);
  spec.set_decay(v1::DECAY_KIND_PER_HEAD);
  EXPECT_EQ(CheckOperatorSpec(spec)->dims.decay, DecayKind::kPerHead);
  spec.set_decay(v1::DECAY_KIND_PER_CHANNEL);
  EXPECT_EQ(CheckOperatorSpec(spec)->dims.decay, DecayKind::kPerChannel);
  spec.set_decay(static_cast<v1::DecayKind>(3));
  EXPECT_EQ(ErrorMetadata(CheckOperatorSpec(spec).status())["field"], "decay");
}

// Sessions of other releases are known by their hashes.
TEST(OperatorSpec, OnlyDecaysByChannelAreAnotherRequest) {
  v1::CreateSessionRequest request;
  *request.mutable_operator_() = Spec(2, 6, 48, 32);
  const Hash128 hash = HashCreateRequest(request);
  request.mutable_operator_()->set_decay(v1::DECAY_KIND_PER_HEAD);
  EXPECT_EQ(HashCreateRequest(request), hash);
  request.mutable_operator_()->set_decay(v1::DECAY_KIND_PER_CHANNEL);
  EXPECT_FALSE(HashCreateRequest(request) == hash);
}

TEST(OperatorSpec, DimensionsOutOfRangeAreRefused) {
  for (const v1::OperatorSpec& bad :
       {Spec(0, 0, 0, 0), Spec(2, 3, 8, 8), Spec(-1, 2, 8, 8), Spec(1, 1, 0, 8), Spec(1, 1, 8, 1025),
        Spec(1025, 1025, 8, 8), Spec(1, 1, 8, 8, -1), Spec(1, 1, 8, 8, 1025)}) {
    const absl::Status status = CheckOperatorSpec(bad).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, bad.ShortDebugString());
    EXPECT_EQ(ErrorMetadata(status).count("field"), 1u);
  }
}

class InitialStates : public ::testing::Test {
 protected:
  v1::InitialState* Add(int layer) {
    v1::InitialState* state = request_.add_initial_states();
    state->set_layer(layer);
    return state;
  }
  auto Check(const LayerDims& dims = kDims) { return CheckInitialStates(request_.initial_states(), dims, kLayers); }
  std::string Reason(const LayerDims& dims = kDims) { return ErrorReason(Check(dims).status()); }

  v1::CreateSessionRequest request_;
};

TEST_F(InitialStates, AreViewedInTheOrderOfTheLayersAndNotCopied) {
  v1::InitialState* state = Add(2);
  state->set_token_count(7);
  *state->mutable_conv_state() = ConvState(3.0f);
  v1::Tensor* half = state->mutable_recurrent_state();
  *half = RecurrentState();
  half->set_dtype(v1::DTYPE_F16);
  half->mutable_data()->resize(24 * 2);
  Add(0);
  GDN_ASSERT_OK_AND_ASSIGN(const auto checked, Check());
  ASSERT_EQ(checked.size(), 2u);
  EXPECT_EQ(checked[0].layer, 0);
  EXPECT_TRUE(checked[0].recurrent_state.data.empty());
  EXPECT_TRUE(checked[0].conv_state.data.empty());
  EXPECT_EQ(checked[1].layer, 2);
  EXPECT_EQ(checked[1].token_count, 7);
  EXPECT_EQ(checked[1].recurrent_state.dtype, DType::kF16);
  EXPECT_EQ(checked[1].recurrent_state.data.data(), half->data().data());
  EXPECT_EQ(checked[1].conv_state.data.data(), state->conv_state().data().data());
}

TEST_F(InitialStates, OfALayerThatIsNotThereAreRefused) {
  Add(2);
  Add(1);
  EXPECT_EQ(Reason(), reason::kLayerNotGdn);
  EXPECT_EQ(ErrorMetadata(Check().status()).at("expected"), "0,2");
}

TEST_F(InitialStates, OfOneLayerTwiceAreRefused) {
  Add(0);
  Add(0);
  EXPECT_EQ(Reason(), reason::kInvalidSpec);
}

TEST_F(InitialStates, CountNoFewerThanZeroTokensAndNoMoreThanTheLimit) {
  v1::InitialState* state = Add(0);
  for (const int64_t count : {int64_t{-1}, kMaxTokenCount + 1, std::numeric_limits<int64_t>::max()}) {
    state->set_token_count(count);
    EXPECT_EQ(Reason(), reason::kInvalidSpec) << count;
  }
  state->set_token_count(kMaxTokenCount);
  EXPECT_TRUE(Check().ok()) << Check().status();
}

TEST_F(InitialStates, OfAWrongShapeAreRefused) {
  *Add(0)->mutable_recurrent_state() = Tensor({2, 4, 3}, std::vector<float>(24));
  EXPECT_EQ(Reason(), reason::kInvalidTensorShape);
  request_.clear_initial_states();
  *Add(0)->mutable_conv_state() = Tensor({14, 4}, std::vector<float>(56));
  EXPECT_EQ(Reason(), reason::kInvalidTensorShape);
}

TEST_F(InitialStates, ThatAreNotFiniteAreRefused) {
  *Add(0)->mutable_recurrent_state() = RecurrentState(std::numeric_limits<float>::infinity());
  EXPECT_EQ(Reason(), reason::kNonFiniteInput);
  request_.clear_initial_states();
  *Add(0)->mutable_conv_state() = ConvState(std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(Reason(), reason::kNonFiniteInput);
}

TEST_F(InitialStates, OfAnOperatorHaveNoConvolution) {
  *Add(0)->mutable_recurrent_state() = RecurrentState();
  EXPECT_TRUE(Check(kOperatorDims).ok());
  *request_.mutable_initial_states(0)->mutable_conv_state() = ConvState();
  EXPECT_EQ(Reason(kOperatorDims), reason::kInvalidSpec);
}

// Sessions of other releases are known by their hashes.
TEST(CreateRequestHash, WithoutLayersIsThatOfEarlierReleases) {
  v1::CreateSessionRequest request;
  request.set_model("models/m");
  request.set_affinity("x");
  EXPECT_EQ(HashCreateRequest(request).ToHex(), "48a0004abb0c0ba0ef7cd22702492fdb");
}

std::vector<int32_t> SomeServed() { return {0, 1, 2, 4, 5, 6}; }

v1::CreateSessionRequest LayersOf(const std::vector<int32_t>& layers) {
  v1::CreateSessionRequest request;
  request.set_model("models/m");
  request.mutable_layers()->Add(layers.begin(), layers.end());
  return request;
}

TEST(SessionLayers, AreTheRequestsOrAllThatAreServed) {
  using Layers = std::vector<int32_t>;
  EXPECT_EQ(*CheckSessionLayers(LayersOf({}), SomeServed()), SomeServed());
  EXPECT_EQ(*CheckSessionLayers(LayersOf({0, 4, 6}), SomeServed()), (Layers{0, 4, 6}));
  EXPECT_EQ(*CheckSessionLayers(LayersOf(SomeServed()), SomeServed()), SomeServed());
  v1::CreateSessionRequest op;
  *op.mutable_operator_() = Spec(1, 1, 8, 8, 2);
  EXPECT_EQ(*CheckSessionLayers(op, {0, 1}), (Layers{0, 1}));
}

TEST(SessionLayers, ThatAreWrongAreRefused) {
  for (const int32_t layer : {-1, 3, 7, 1 << 30}) {
    const absl::Status status = CheckSessionLayers(LayersOf({0, layer}), SomeServed()).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kLayerNotGdn);
    EXPECT_EQ(ErrorMetadata(status)["layer"], std::to_string(layer));
    EXPECT_EQ(ErrorMetadata(status)["expected"], "0-2,4-6");
  }
  for (const std::vector<int32_t>& layers : {std::vector<int32_t>{1, 0}, {2, 2}, {0, 1, 2, 1}}) {
    const absl::Status status = CheckSessionLayers(LayersOf(layers), SomeServed()).status();
    ExpectError(status, absl::StatusCode::kInvalidArgument, reason::kInvalidSpec);
    EXPECT_EQ(ErrorMetadata(status)["field"], "layers");
  }
  v1::CreateSessionRequest op;
  *op.mutable_operator_() = Spec(1, 1, 8, 8, 2);
  op.add_layers(0);
  EXPECT_EQ(ErrorMetadata(CheckSessionLayers(op, {0, 1}).status())["field"], "layers");
}

TEST(CreateRequestHash, TellsRequestsApartByAllThatMakesTheSession) {
  v1::CreateSessionRequest request;
  request.set_session_id("a");
  request.set_model("models/m");
  const auto with = [&](auto change) {
    v1::CreateSessionRequest other = request;
    change(other);
    return HashCreateRequest(other);
  };
  const Hash128 hash = HashCreateRequest(request);
  EXPECT_EQ(with([](auto& r) { r.set_session_id("b"); }), hash) << "the id is the key, not the content";
  std::vector<Hash128> others = {
      hash,
      with([](auto& r) { r.set_model("models/n"); }),
      with([](auto& r) { r.set_affinity("x"); }),
      with([](auto& r) { *r.mutable_operator_() = Spec(1, 1, 8, 8); }),
      with([](auto& r) { *r.mutable_operator_() = Spec(1, 1, 8, 8, 2); }),
      with([](auto& r) { r.add_initial_states(); }),
      with([](auto& r) { r.add_initial_states()->set_layer(1); }),
      with([](auto& r) { r.add_initial_states()->set_token_count(1); }),
      with([](auto& r) { *r.add_initial_states()->mutable_recurrent_state() = RecurrentState(); }),
      with([](auto& r) { *r.add_initial_states()->mutable_recurrent_state() = RecurrentState(2.0f); }),
      with([](auto& r) { *r.add_initial_states()->mutable_conv_state() = RecurrentState(); }),
      with([](auto& r) { r.add_layers(0); }),
      with([](auto& r) { r.add_layers(1); }),
      with([](auto& r) {
        r.add_layers(0);
        r.add_layers(1);
      }),
  };
  for (size_t i = 0; i < others.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_FALSE(others[i] == others[j]) << i << " and " << j;
  }
  EXPECT_EQ(with([](auto& r) { *r.mutable_operator_() = Spec(1, 1, 8, 8, 1); }), others[3]) << "1 is the default";
}

}  // namespace
}  // namespace gdn::session_spec_test
