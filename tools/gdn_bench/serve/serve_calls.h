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

enum class CallKind { kDecode, kPrefill, kStep };
enum class Api { kUnary, kStream };
// The form of calls: messages; bytes, which the raw echo returns; messages with tensors in shared memory; the separate
// messages that do the work of a Step; or submissions of a ring.
enum class Wire { kMessages, kBytes, kSharedMemory, kSeparateCalls, kRing };

struct Workload {
  CallKind call = CallKind::kDecode;
  Api api = Api::kUnary;
  int sessions = 8;  // B, in a Decode; rows of a Step; a Prefill has one
  int tokens = 1;    // T, tokens of each session; in a Step, of each row that decodes
  int hidden = 2048;
  DType dtype = DType::kBF16;
  bool request_ids = false;  // send a new request_id with each call, as clients that retry do
  int layers = 1;            // number of the model's layers; calls use them in turn
  int ring_spin_us = 50;     // how long a ring's client looks for its reply before it sleeps; 0: not at all
  // The rows of a Step: decodes first, then drafts, then a prefill.
  int drafts = 0;          // rows that draft, after they have accepted the draft before
  int draft_tokens = 0;    // tokens of each draft
  int prefill_tokens = 0;  // tokens of the row that prefills; 0: no row does

  int rows() const { return call == CallKind::kPrefill ? 1 : sessions; }
  int decodes() const { return rows() - drafts - (prefill_tokens > 0 ? 1 : 0); }
  int64_t tokens_per_call() const {
    return int64_t{decodes()} * tokens + int64_t{drafts} * draft_tokens + prefill_tokens;
  }
  int64_t tensor_bytes() const { return tokens_per_call() * hidden * static_cast<int64_t>(DTypeSize(dtype)); }
};

// A client that sends one call at a time and waits for its reply.
class Caller {
 public:
  virtual ~Caller() = default;
  // Makes the next call's inputs ready, before its time begins.
  virtual absl::Status Prepare() { return absl::OkStatus(); }
  // Sends a call and waits for its reply, at most 2 minutes in a unary call. Errors of the call. INTERNAL if the reply
  // does not have the expected size.
  virtual absl::Status Call() = 0;
  // Sizes of the last call on the wire, in bytes. Valid after the first call.
  virtual int64_t request_bytes() const = 0;
  virtual int64_t response_bytes() const = 0;
};

// Makes a client that sends calls of this load. `sessions`: load.rows() names. The first call opens a stream if the
// load needs one; the Caller's destructor ends it.
// `wire` of a Step: messages or separate calls. Wire::kRing is for unary Decode and Prefill.
std::unique_ptr<Caller> MakeCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                   const std::vector<std::string>& sessions, Wire wire);

}  // namespace gdn::bench
