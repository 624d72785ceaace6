// The calls of `gdn_bench serve`: what is sent, to which kind of server, one call after the other.
//
// Thread safety: a Caller is for one thread, and several may share a channel. Ownership: a Caller shares its channel.
//
//   const Workload load{.call = CallKind::kDecode, .sessions = 8};
//   auto caller = MakeCaller(ChannelAlone(target), load, {"sessions/a", ...}, Wire::kMessages);
//   GDN_RETURN_IF_ERROR(caller->Call());
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/dtype.h"
#include "grpcpp/channel.h"

namespace gdn::bench {

enum class CallKind { kDecode, kPrefill };
enum class Api { kUnary, kStream };
// What travels: messages; bytes, which the server sends back; or messages whose tensors lie in shared memory.
enum class Wire { kMessages, kBytes, kSharedMemory };

struct Workload {
  CallKind call = CallKind::kDecode;
  Api api = Api::kUnary;
  int sessions = 8;  // B, in a Decode; a Prefill has one
  int tokens = 1;    // T, of each session
  int hidden = 2048;
  DType dtype = DType::kBF16;
  bool request_ids = false;  // a new one with each call, as a client that retries sends
  int layers = 1;            // of the model; calls take them in turn

  int rows() const { return call == CallKind::kDecode ? sessions : 1; }
  int64_t tokens_per_call() const { return int64_t{rows()} * tokens; }
  int64_t tensor_bytes() const { return tokens_per_call() * hidden * static_cast<int64_t>(DTypeSize(dtype)); }
};

// A client that sends a call, waits for its reply, and then may send the next.
class Caller {
 public:
  virtual ~Caller() = default;
  // Errors of the call, or INTERNAL where the reply has other bytes than was to be expected.
  virtual absl::Status Call() = 0;
  // Of the last call, on the wire.
  virtual int64_t request_bytes() const = 0;
  virtual int64_t response_bytes() const = 0;
};

// `sessions` are load.rows() names. A stream is opened by the first call and ended with the caller.
std::unique_ptr<Caller> MakeCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                   const std::vector<std::string>& sessions, Wire wire);

}  // namespace gdn::bench
