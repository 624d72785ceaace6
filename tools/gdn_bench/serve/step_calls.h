// Callers of a Step, and of the separate calls that do the same work: a Decode of the rows that decode, AcceptTokens
// and then a draft Decode of the rows that draft, and a Prefill. The separate calls are sent at once on one channel;
// only the draft Decode waits for AcceptTokens. Both callers use gRPC's callback API, so that only the calls differ.
//
// Each draft accepts all tokens of a draft before: in a Step of the same layer's, and with AcceptTokens, which concerns
// all layers, of the last call's. The callers must not share sessions.
// Thread safety: as Caller. Ownership: a caller shares its channel.
//
//   const Workload load{.call = CallKind::kStep, .sessions = 32, .prefill_tokens = 512};
//   auto caller = MakeWholeStepCaller(ChannelAlone(target), load, {"sessions/a", ...});
//   GDN_RETURN_IF_ERROR(caller->Call());
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "tools/gdn_bench/serve/serve_calls.h"

namespace gdn::bench {

// Make a Caller for loads of CallKind::kStep: one whose call is a Step, and one whose call is the separate calls that
// do the same work. `sessions`: load.rows() names, in the order of the rows. A call of MakeSeparateCaller's ends when
// all its replies have come, and returns their first error.
std::unique_ptr<Caller> MakeWholeStepCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                            const std::vector<std::string>& sessions);
std::unique_ptr<Caller> MakeSeparateCaller(std::shared_ptr<grpc::Channel> channel, const Workload& load,
                                           const std::vector<std::string>& sessions);

}  // namespace gdn::bench
