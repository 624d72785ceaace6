// libgdn's order beside the streams of its callers, on the host executor's streams, which run behind the host.

#include <array>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "capi/gdn.h"
#include "gmock/gmock.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "gtest/gtest.h"
#include "kernels/gpu/runtime.h"
#include "tests/support/assert_ok.h"
#include "tests/support/compare.h"
#include "tests/support/delta_rule_problem.h"

namespace gdn::caller_streams_test {
namespace {

using gpu::HostStreams;
using gpu::StreamPace;

constexpr uint64_t kSeeds = 12;
constexpr int64_t kPrompt = 40;
constexpr int64_t kTokens = kPrompt + 2;
constexpr double kTolerance = 5e-6;  // the chunked form's

// A tensor of a caller: in page-locked memory, and on the device.
struct Tensor {
  Tensor(const std::vector<float>& values, std::vector<int64_t> its_shape)
      : shape(std::move(its_shape)), bytes(values.size() * sizeof(float)) {
    device = *gpu::DeviceMalloc(bytes);
    pinned = static_cast<float*>(*gpu::PinnedMalloc(bytes));
    std::memcpy(pinned, values.data(), bytes);
  }
  ~Tensor() {
    gpu::DeviceFree(device);
    gpu::PinnedFree(pinned);
  }

  // Rows [first, last).
  gdn_tensor Rows(int64_t first, int64_t last) const {
    const int64_t row = static_cast<int64_t>(bytes / sizeof(float)) / shape[0];
    gdn_tensor rows{static_cast<float*>(device) + first * row, GDN_F32, static_cast<int32_t>(shape.size()), {}};
    std::copy(shape.begin(), shape.end(), rows.shape);
    rows.shape[0] = last - first;
    return rows;
  }

  std::vector<int64_t> shape;
  size_t bytes;
  void* device;
  float* pinned;
};

class CallerStreams : public testing::Test {
 protected:
  ~CallerStreams() override { HostStreams::ConfigureFromEnvironment(); }

  gdn_context* context_ = nullptr;
  gdn_pool* pool_ = nullptr;
};

int Advance(gdn_pool* pool, int32_t slot, int64_t first, int64_t last, const std::vector<const Tensor*>& tensors,
            void* stream) {
  const std::array<int32_t, 2> cu_seqlens = {0, static_cast<int32_t>(last - first)};
  gdn_delta_rule_step step{};
  step.struct_size = sizeof(step);
  step.batch = {1, cu_seqlens.data(), &slot};
  step.q = tensors[0]->Rows(first, last);
  step.k = tensors[1]->Rows(first, last);
  step.v = tensors[2]->Rows(first, last);
  step.g = tensors[3]->Rows(first, last);
  step.beta = tensors[4]->Rows(first, last);
  step.output = tensors[5]->Rows(first, last);
  step.scale = 1.0f;  // q is scaled
  step.stream = stream;
  return last - first > 2 ? gdn_prefill(pool, &step) : gdn_decode(pool, &step);
}

gdn_pool* MakeDeltaRulePool(gdn_context* context, int32_t slots) {
  gdn_pool_spec spec{};
  spec.struct_size = sizeof(spec);
  spec.key_heads = 1;
  spec.value_heads = 2;
  spec.key_dim = 16;
  spec.value_dim = 12;
  spec.slots = slots;
  gdn_pool* pool = nullptr;
  EXPECT_EQ(gdn_pool_create(context, &spec, &pool), GDN_OK) << gdn_last_error();
  return pool;
}

// Inputs arrive on the caller's stream, which begins only when somebody waits for it, and outputs leave on it.
TEST_F(CallerStreams, StepsRunBehindWhatTheStreamHasAndBeforeWhatItIsGivenNext) {
  Random random(3);
  const LayerDims dims = OperatorDims(1, 2, 16, 12);
  const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, kTokens, random);
  std::vector<double> state(static_cast<size_t>(dims.state_elements()));
  const std::vector<double> expected = DeltaRuleInDouble(inputs, state);
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    SCOPED_TRACE(seed);
    HostStreams::Configure({.asynchronous = true, .seed = seed, .devices = 2, .paces = {StreamPace::kLazy}});
    ASSERT_TRUE(gpu::UseDevice(1).ok());
    const gpu::Stream caller = *gpu::MakeStream(1);
    {
      const Tensor q(inputs.q, {kTokens, 1, 16}), k(inputs.k, {kTokens, 1, 16}), v(inputs.v, {kTokens, 2, 12});
      const Tensor g(inputs.g, {kTokens, 2}), beta(inputs.beta, {kTokens, 2});
      const Tensor output(std::vector<float>(expected.size()), {kTokens, 2, 12});
      ASSERT_EQ(gdn_context_create(GDN_GPU, 1, 0, &context_), GDN_OK) << gdn_last_error();
      pool_ = MakeDeltaRulePool(context_, 2);
      int32_t slot = -1;
      ASSERT_EQ(gdn_slots_allocate(pool_, 1, &slot), GDN_OK) << gdn_last_error();
      for (const Tensor* tensor : {&q, &k, &v, &g, &beta}) {
        ASSERT_TRUE(gpu::CopyToDevice(tensor->device, tensor->pinned, tensor->bytes, caller).ok());
      }
      ASSERT_TRUE(gpu::UseDevice(0).ok());
      const std::vector<const Tensor*> tensors = {&q, &k, &v, &g, &beta, &output};
      EXPECT_EQ(Advance(pool_, slot, 0, kPrompt, tensors, caller.handle), GDN_OK) << gdn_last_error();
      EXPECT_EQ(Advance(pool_, slot, kPrompt, kTokens, tensors, caller.handle), GDN_OK) << gdn_last_error();
      EXPECT_EQ(*gpu::DeviceInUse(), 0) << "the thread's device is its own";
      ASSERT_TRUE(gpu::UseDevice(1).ok());
      ASSERT_TRUE(gpu::CopyToHost(output.pinned, output.device, output.bytes, caller).ok());
      ASSERT_TRUE(gpu::SynchronizeStream(caller).ok());
      const std::vector<float> actual(output.pinned, output.pinned + expected.size());
      EXPECT_LE(RelativeNormError(actual, expected), kTolerance);
      std::vector<float> matrices(state.size());
      EXPECT_EQ(gdn_state_get(pool_, slot, matrices.data(), caller.handle), GDN_OK) << gdn_last_error();
      EXPECT_LE(RelativeNormError(matrices, state), kTolerance);
      gdn_pool_destroy(pool_);
      gdn_context_destroy(context_);
    }
    gpu::DestroyStream(caller);
  }
}

// A replay would copy from page-locked memory that holds something else by then.
TEST_F(CallerStreams, AStreamThatIsCapturedIsRefusedBeforeAnythingIsIssued) {
  HostStreams::Configure({.asynchronous = true, .seed = 1});
  const gpu::Stream caller = *gpu::MakeStream(0);
  ASSERT_EQ(gdn_context_create(GDN_GPU, 0, 0, &context_), GDN_OK) << gdn_last_error();
  pool_ = MakeDeltaRulePool(context_, 3);
  std::array<int32_t, 2> slots = {};
  ASSERT_EQ(gdn_slots_allocate(pool_, 2, slots.data()), GDN_OK) << gdn_last_error();
  {
    Random random(4);
    const LayerDims dims = OperatorDims(1, 2, 16, 12);
    const DeltaRuleInputs inputs = RandomDeltaRuleInputs(dims, kTokens, random);
    const Tensor q(inputs.q, {kTokens, 1, 16}), k(inputs.k, {kTokens, 1, 16}), v(inputs.v, {kTokens, 2, 12});
    const Tensor g(inputs.g, {kTokens, 2}), beta(inputs.beta, {kTokens, 2});
    const Tensor output(std::vector<float>(inputs.v.size()), {kTokens, 2, 12});
    const std::vector<const Tensor*> tensors = {&q, &k, &v, &g, &beta, &output};
    for (const Tensor* tensor : tensors) {
      ASSERT_TRUE(gpu::CopyToDevice(tensor->device, tensor->pinned, tensor->bytes, caller).ok());
    }
    ASSERT_EQ(Advance(pool_, slots[0], 0, kPrompt, tensors, caller.handle), GDN_OK) << gdn_last_error();
    gdn_bytes* file = nullptr;
    ASSERT_EQ(gdn_state_export(pool_, 1, slots.data(), caller.handle, &file), GDN_OK) << gdn_last_error();
    std::vector<float> before(static_cast<size_t>(dims.state_elements()));
    ASSERT_EQ(gdn_state_get(pool_, slots[0], before.data(), caller.handle), GDN_OK) << gdn_last_error();

    std::vector<float> matrices(before.size());
    gdn_bytes* none = nullptr;
    const struct {
      const char* name;
      std::function<int()> call;
    } calls[] = {
        {"prefill", [&] { return Advance(pool_, slots[0], kPrompt - 3, kPrompt, tensors, caller.handle); }},
        {"decode", [&] { return Advance(pool_, slots[0], kPrompt, kTokens, tensors, caller.handle); }},
        {"zero", [&] { return gdn_slots_zero(pool_, 1, slots.data(), caller.handle); }},
        {"copy", [&] { return gdn_slots_copy(pool_, 1, &slots[1], &slots[0], caller.handle); }},
        {"export", [&] { return gdn_state_export(pool_, 1, slots.data(), caller.handle, &none); }},
        {"import",
         [&] {
           return gdn_state_import(pool_, 1, slots.data(), gdn_bytes_data(file), gdn_bytes_size(file), caller.handle);
         }},
        {"get", [&] { return gdn_state_get(pool_, slots[0], matrices.data(), caller.handle); }},
        {"set", [&] { return gdn_state_set(pool_, slots[0], matrices.data(), 0, caller.handle); }},
    };
    for (const auto& [name, call] : calls) {
      SCOPED_TRACE(name);
      const int64_t operations = HostStreams::operations();
      ASSERT_TRUE(gpu::BeginCapture(caller).ok());
      EXPECT_EQ(call(), GDN_INVALID_ARGUMENT);
      EXPECT_THAT(gdn_last_error(), testing::HasSubstr("captured into a graph"));
      const absl::StatusOr<gpu::Graph> graph = gpu::EndCapture(caller);
      EXPECT_TRUE(graph.ok()) << "the capture is spoiled: " << graph.status();
      if (graph.ok()) gpu::DestroyGraph(*graph);
      EXPECT_EQ(HostStreams::operations(), operations) << "something was issued";
      EXPECT_EQ(gdn_state_get(pool_, slots[0], matrices.data(), caller.handle), GDN_OK) << gdn_last_error();
      EXPECT_TRUE(BitEqual(matrices, before));
      int64_t tokens = 0;
      EXPECT_EQ(gdn_slot_tokens(pool_, slots[0], &tokens), GDN_OK);
      EXPECT_EQ(tokens, kPrompt);
    }
    EXPECT_EQ(Advance(pool_, slots[0], kPrompt, kTokens, tensors, caller.handle), GDN_OK) << gdn_last_error();
    ASSERT_TRUE(gpu::SynchronizeStream(caller).ok());
    gdn_bytes_free(file);
  }
  gdn_pool_destroy(pool_);
  gdn_context_destroy(context_);
  gpu::DestroyStream(caller);
}

}  // namespace
}  // namespace gdn::caller_streams_test
