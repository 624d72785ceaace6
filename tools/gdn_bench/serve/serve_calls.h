// Sends the calls of `gdn_bench serve` to a server, one after the other.
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
// The form of calls: messages; bytes, which the raw echo returns; or messages with tensors in shared memory.
enum class Wire { kMessages, kBytes, kSharedMemory };

struct Workload {
  CallKind call = CallKind::kDecode;
  Api api = Api::kUnary;
  int sessions = 8;  // B, in a Decode; a Prefill has one
  int tokens = 1;    // T, tokens of each session
  int hidden = 2048;
  DType dtype = DType::kBF16;
  bool request_ids = false;  // send a new request_id with each call, as clients that retry do
  int layers = 1;            // number of the model's layers; calls use them in turn

  int rows() const { return call == CallKind::kDecode ? sessions : 1; }
  int64_t tokens_per_call() const { return int64_t{rows()} * tokens; }
  int64_t tensor_bytes() const { return tokens_per_call() * hidden * static_cast<int64_t>(DTypeSize(dtype)); }
};

// A client that sends one call at a time and waits for its reply.
class Caller {
 public:
  virtual ~Caller() = default;
  // Sends a call and waits for its reply. Errors of the call. INTERNAL if the reply does not have the expected size.
  virtual absl::Status Call() = 0;
  // Sizes of the last call on the wire, in bytes.
  virtual int64_t request_bytes() const = 0;
  virtual int64_t response_bytes() const = 0;
};

// Makes a client that sends calls of this load. `sessions`: load.rows() names. The first call opens a stream if the
// load needs one; the Caller's destructor ends it.
std::unique_ptr<Caller> MakeCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                   const std::vector<std::string>& sessions, Wire wire);

}  // namespace gdn::bench
