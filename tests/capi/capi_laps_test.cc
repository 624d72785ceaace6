// libgdn's decodes go several times round the index arena and the ring of page-locked memory, on streams that run
// behind the host. Outputs stay the CPU's.

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "capi/gdn.h"
#include "kernels/gpu/on_host/host_streams.h"
#include "gtest/gtest.h"
#include "kernels/gpu/runtime.h"
#include "tests/support/compare.h"
#include "tests/support/random.h"

namespace gdn::capi_laps_test {
namespace {

using gpu::HostStreams;
using gpu::StreamPace;

// Many sequences, for long arrays, of which few have a token, for short steps: token counts and log lengths take 24 KiB
// of the arena's 1 MiB, and move with every step.
constexpr int32_t kSequences = 2048;
constexpr int32_t kBusy = 4;
constexpr int64_t kSteps = 60;  // a lap and a half; laps_test.cc goes round often, in a small arena
constexpr int64_t kHeads = 2, kKeyDim = 8, kValueDim = 8, kTaps = 4;
constexpr int64_t kChannels = 2 * kKeyDim + kHeads * kValueDim;
constexpr double kTolerance = 1e-5;

// Tensors of a mixer's decode: host memory of the CPU's, or page-locked and device memory.
class Mixer {
 public:
  explicit Mixer(int32_t backend) : on_gpu_(backend == GDN_GPU) {
    EXPECT_EQ(gdn_context_create(backend, 0, 1, &context_), GDN_OK) << gdn_last_error();
    gdn_pool_spec spec{};
    spec.struct_size = sizeof(spec);
    spec.key_heads = 1;
    spec.value_heads = kHeads;
    spec.key_dim = kKeyDim;
    spec.value_dim = kValueDim;
    spec.conv_width = kTaps;
    spec.hidden_size = 1;
    spec.slots = kSequences;
    EXPECT_EQ(gdn_pool_create(context_, &spec, &pool_), GDN_OK) << gdn_last_error();
    slots_.resize(kSequences);
    EXPECT_EQ(gdn_slots_allocate(pool_, kSequences, slots_.data()), GDN_OK) << gdn_last_error();
    cu_seqlens_.resize(kSequences + 1);
    for (int32_t i = 0; i < kSequences; ++i) {
      cu_seqlens_[static_cast<size_t>(i) + 1] = cu_seqlens_[static_cast<size_t>(i)] + IsBusy(i);
    }
    Random random(17);
    conv_weight_ = Make(random.Normal(kChannels * kTaps, 0.5f));
    a_log_ = Make(random.Uniform(kHeads, -4.0f, 1.0f));
    dt_bias_ = Make(random.Normal(kHeads));
    norm_weight_ = Make(random.Normal(kValueDim));
    mixed_qkv_ = Make(std::vector<float>(kBusy * kChannels));
    z_ = Make(std::vector<float>(kBusy * kHeads * kValueDim));
    b_ = Make(std::vector<float>(kBusy * kHeads));
    a_ = Make(std::vector<float>(kBusy * kHeads));
    output_ = Make(std::vector<float>(kBusy * kHeads * kValueDim));
  }
  ~Mixer() {
    gdn_pool_destroy(pool_);
    gdn_context_destroy(context_);
    for (float* data : made_) Free(data);
    if (on_gpu_) gpu::DestroyStream(stream_);
  }
  Mixer(const Mixer&) = delete;

  std::vector<float> Decode(Random& random) {
    Write(mixed_qkv_, random.Normal(kBusy * kChannels));
    Write(z_, random.Normal(kBusy * kHeads * kValueDim));
    Write(b_, random.Normal(kBusy * kHeads));
    Write(a_, random.Normal(kBusy * kHeads));
    gdn_mixer_step step{};
    step.struct_size = sizeof(step);
    step.batch = {kSequences, cu_seqlens_.data(), slots_.data()};
    step.weights = {{conv_weight_, GDN_F32, 2, {kChannels, kTaps}},
                    {a_log_, GDN_F32, 1, {kHeads}},
                    {dt_bias_, GDN_F32, 1, {kHeads}},
                    {norm_weight_, GDN_F32, 1, {kValueDim}},
                    0.0f};
    step.mixed_qkv = {mixed_qkv_, GDN_F32, 2, {kBusy, kChannels}};
    step.z = {z_, GDN_F32, 3, {kBusy, kHeads, kValueDim}};
    step.b = {b_, GDN_F32, 2, {kBusy, kHeads}};
    step.a = {a_, GDN_F32, 2, {kBusy, kHeads}};
    step.output = {output_, GDN_F32, 3, {kBusy, kHeads, kValueDim}};
    step.stream = stream_.handle;
    EXPECT_EQ(gdn_mixer_decode(pool_, &step), GDN_OK) << gdn_last_error();
    std::vector<float> values(kBusy * kHeads * kValueDim);
    if (!on_gpu_) {
      values.assign(output_, output_ + values.size());
    } else {
      EXPECT_TRUE(gpu::CopyToHost(values.data(), output_, values.size() * sizeof(float), stream_).ok());
    }
    return values;
  }

 private:
  // At both ends of the arrays and within: whichever part is overwritten shows.
  static int32_t IsBusy(int32_t sequence) {
    return sequence == 0 || sequence == 700 || sequence == 1400 || sequence == kSequences - 1 ? 1 : 0;
  }

  float* Make(const std::vector<float>& values) {
    float* data =
        on_gpu_ ? static_cast<float*>(*gpu::DeviceMalloc(values.size() * sizeof(float))) : new float[values.size()];
    made_.push_back(data);
    Write(data, values);
    return data;
  }
  void Write(float* data, const std::vector<float>& values) const {
    if (!on_gpu_) {
      std::ranges::copy(values, data);
    } else {
      EXPECT_TRUE(gpu::CopyToDevice(data, values.data(), values.size() * sizeof(float), stream_).ok());
    }
  }
  void Free(float* data) const {
    if (on_gpu_) {
      gpu::DeviceFree(data);
    } else {
      delete[] data;
    }
  }

  const bool on_gpu_;
  const gpu::Stream stream_ = on_gpu_ ? *gpu::MakeStream(0) : gpu::Stream{};
  gdn_context* context_ = nullptr;
  gdn_pool* pool_ = nullptr;
  std::vector<int32_t> slots_, cu_seqlens_;
  std::vector<float*> made_;
  float *conv_weight_, *a_log_, *dt_bias_, *norm_weight_, *mixed_qkv_, *z_, *b_, *a_, *output_;
};

TEST(LibgdnLaps, DecodesOfManySequencesStayRightRoundAndRoundTheArena) {
  HostStreams::Configure({.asynchronous = true, .seed = 2, .paces = std::vector<StreamPace>(4, StreamPace::kLazy)});
  {
    Mixer gpu(GDN_GPU), cpu(GDN_CPU);
    Random for_gpu(18), for_cpu(18);
    for (int64_t step = 0; step < kSteps; ++step) {
      ASSERT_LE(RelativeNormError(gpu.Decode(for_gpu), cpu.Decode(for_cpu)), kTolerance) << "step " << step;
    }
  }
  HostStreams::ConfigureFromEnvironment();
}

}  // namespace
}  // namespace gdn::capi_laps_test
