// The backend that this run of a test program tests: $GDN_TEST_BACKEND, or "cpu" if that is not set.
//
// "host" is the GPU sources on the SIMT executor (waves of $GDN_HOST_WAVE_WIDTH lanes), "gpu" the same sources on a
// device. The build's preset decides which of the two it has. Thread safety: free functions.
//
//   std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/2);
//
// For a test of several backends, the backends' names are the values of its parameter:
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

// Makes the backend. Ends the program with the reason if that fails, because a test on another one would prove nothing.
std::unique_ptr<Backend> MakeTestBackend(int threads, ProductMath math = ProductMath::kExact);

// Makes a backend: "cpu"; "null"; "reference" (the references of the delta rule, no other operators); or the GPU
// sources: "host64" and "host32" on the executor with waves of 64 and 32, or "gpu" on the device of the build.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const std::string& name, ProductMath math = ProductMath::kExact);

// Returns `names` and the names of the GPU sources' backends.
std::vector<std::string> WithGpus(std::vector<std::string> names);
// Returns `names` and one backend of the GPU sources: "gpu", or "host64", or "host32" if the executor has matrix units.
std::vector<std::string> WithOneGpu(std::vector<std::string> names);
// Returns the backends whose memory a test may read and write directly: "cpu", and the executor's backends if tests run
// on the executor and its streams are not asynchronous.
std::vector<std::string> HostBackends();
// Makes other backends that promise the same bits as the backend `name`: with fewer and more threads, or smaller and
// larger grids. `any_wave`: also with the other wave width; false for operators that take another path there.
std::vector<std::unique_ptr<Backend>> BackendsOfTheSameBits(const std::string& name, bool any_wave);

// Fixture of a test that runs once on each named backend. Skipped if a backend cannot be made ("gpu" without a device).
class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (!backend_.ok()) GTEST_SKIP() << backend_.status();
  }
  Backend& backend() { return **backend_; }
  bool on_cpu() const { return GetParam() == "cpu"; }
  // Returns `dims`, followed by the same dims with a log decay for each key channel.
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
