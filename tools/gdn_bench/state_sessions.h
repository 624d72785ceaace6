// Tensors to send, and operator sessions with states worth moving.
//
// Thread safety: free functions. Ownership: the client is the caller's.
//
//   GDN_RETURN_IF_ERROR(MakeBusySession(*client, "a", /*layers=*/36));
//   v1::DecodeRequest step = StepOf("a", /*layer=*/0);
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "client/cpp/client.h"

namespace gdn::bench {

// Numbers in [low, high), the same ones on every run.
v1::Tensor RandomTensor(const std::vector<int64_t>& shape, float low, float high, DType dtype = DType::kF32);

v1::OperatorSpec BenchOperatorSpec(int layers);

// One token for one layer.
v1::DecodeRequest StepOf(const std::string& id, int layer);

// Every layer has a base, and a log of a few tokens.
absl::Status MakeBusySession(Client& client, const std::string& id, int layers);

}  // namespace gdn::bench
