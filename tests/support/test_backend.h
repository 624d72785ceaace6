// The backend that this run of a test program is about: $GDN_TEST_BACKEND, "cpu" where that is not set.
//
// "host" is the GPU sources on the SIMT executor (waves of $GDN_HOST_WAVE_WIDTH lanes), "gpu" the same on a device;
// which of the two a build has is decided by its preset. Thread safety: free functions.
//
//   std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/2);
//
// And the backends of a test that is about several, as the values of its parameter:
//
//   class Gating : public BackendTest {};
//   GDN_ON_EVERY_BACKEND(Gating);
//   TEST_P(Gating, NaNStaysInItsElement) { ASSERT_TRUE(backend().Gating(params).ok()); }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/layer_dims.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace gdn {

std::string TestBackendName();

// Ends the program with the reason where the backend cannot be made: a test that ran on another would say nothing.
std::unique_ptr<Backend> MakeTestBackend(int threads);

// "cpu"; "null"; "reference", the delta rule by its references and no other operators; and the GPU sources: "host64"
// and "host32" on the executor, named after their waves, or "gpu" on the device that they were built for.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const std::string& name);

// `names`, and those of the GPU sources.
std::vector<std::string> WithGpus(std::vector<std::string> names);
// `names`, and those of the GPU sources with a GPU's wave: "host64" or "gpu".
std::vector<std::string> WithOneGpu(std::vector<std::string> names);
// Those whose memory a test may read and write in place: "cpu", and the executor's where tests run on it and its
// streams do not run behind them.
std::vector<std::string> HostBackends();
// Others that promise the bits of a host backend: of fewer and more threads, or of smaller and larger grids; of the
// other wave too, but for operators that take another path there (any_wave false).
std::vector<std::unique_ptr<Backend>> BackendsOfTheSameBits(const std::string& name, bool any_wave);

// Is run once on each of the backends named. Skipped where the GPU sources were built for a device and there is none.
class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!backend_.ok()) GTEST_SKIP() << backend_.status();
  }
  Backend& backend() { return **backend_; }
  bool on_cpu() const { return GetParam() == "cpu"; }
  // `dims`, and then the same with a log decay for each key channel.
  static std::vector<LayerDims> WithChannelDecays(const std::vector<LayerDims>& dims) {
    std::vector<LayerDims> both = dims;
    for (LayerDims by_channel : dims) {
      by_channel.decay = DecayKind::kPerChannel;
      both.push_back(by_channel);
    }
    return both;
  }
  std::vector<std::unique_ptr<Backend>> OthersOfTheSameBits(bool any_wave = true) const {
    return BackendsOfTheSameBits(GetParam(), any_wave);
  }

 private:
  absl::StatusOr<std::unique_ptr<Backend>> backend_ = MakeBackend(GetParam());
};

#define GDN_ON_BACKENDS(Fixture, names) \
  INSTANTIATE_TEST_SUITE_P(On, Fixture, testing::ValuesIn(names), [](const auto& backend) { return backend.param; })
#define GDN_ON_EVERY_BACKEND(Fixture) GDN_ON_BACKENDS(Fixture, ::gdn::HostBackends())

}  // namespace gdn
