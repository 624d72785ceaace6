// The backend that this run of a test program is about: $GDN_TEST_BACKEND, "cpu" where that is not set.
//
// "host" is the GPU sources on the SIMT executor (waves of $GDN_HOST_WAVE_WIDTH lanes), "gpu" the same on a device;
// which of the two a build has is decided by its preset. Thread safety: free functions.
//
//   std::unique_ptr<Backend> backend = MakeTestBackend(/*threads=*/2);
//
// And the backends of a test that is about all of them, as the values of its parameter:
//
//   class Gating : public BackendTest {};
//   GDN_ON_EVERY_BACKEND(Gating);
//   TEST_P(Gating, NaNStaysInItsElement) { ASSERT_TRUE(backend().Gating(params).ok()); }
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"

namespace gdn {

std::string TestBackendName();

// Ends the program with the reason where the backend cannot be made: a test that ran on another would say nothing.
std::unique_ptr<Backend> MakeTestBackend(int threads);

// "cpu", and where the executor runs the GPU sources "host64" and "host32", named after their waves: the backends whose
// memory a test may read and write in place.
std::vector<std::string> HostBackends();
std::unique_ptr<Backend> MakeHostBackend(const std::string& name);
// Others that promise the same bits: of fewer and more threads, or of the other wave and of smaller and larger grids.
std::vector<std::unique_ptr<Backend>> BackendsOfTheSameBits(const std::string& name);

// Is run once on each of HostBackends().
class BackendTest : public testing::TestWithParam<std::string> {
 protected:
  Backend& backend() { return *backend_; }
  bool on_cpu() const { return GetParam() == "cpu"; }
  std::vector<std::unique_ptr<Backend>> OthersOfTheSameBits() const { return BackendsOfTheSameBits(GetParam()); }

 private:
  std::unique_ptr<Backend> backend_ = MakeHostBackend(GetParam());
};

#define GDN_ON_EVERY_BACKEND(Fixture)                                             \
  INSTANTIATE_TEST_SUITE_P(On, Fixture, testing::ValuesIn(::gdn::HostBackends()), \
                           [](const auto& backend) { return backend.param; })

}  // namespace gdn
