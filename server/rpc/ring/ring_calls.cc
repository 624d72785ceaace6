#include "server/rpc/ring/ring_calls.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/owned_flow.h"
#include "base/task/status_macros.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/call_charge.h"
#include "server/rpc/calls.h"
#include "server/rpc/ring/ring_messages.h"
#include "server/rpc/steps/step_flow.h"
#include "server/rpc/transport/rpc_status.h"

namespace gdn {
namespace {

// The bytes of the submission's message and tensors.
int64_t RequestBytes(const gdn_ring_submission& submission) {
  uint64_t bytes = submission.message_bytes;
  for (const uint64_t tensor : submission.tensor_bytes) bytes += tensor;
  return static_cast<int64_t>(bytes);
}

// A Step, Decode or Prefill.
template <typename Request, typename Response, typename Message, RpcMethod method>
class RingStep final : public RingCalls::InFlight, private StepFlow<Request, Response, Message> {
 public:
  RingStep(RingCalls& calls, const gdn_ring_submission& submission, bool alone)
      : StepFlow<Request, Response, Message>(calls.parts(), method), calls_(calls), submission_(submission) {
    this->may_run_here_ = alone;
  }
  void Run() {
    absl::Status charged = this->Charge(calls_.CallerOfNow(this->gone_, submission_.timeout_us),
                                        static_cast<size_t>(RequestBytes(submission_)));
    if (!charged.ok()) return this->Refuse(std::move(charged));
    this->Begin(ReadRingRequest(
        calls_.ring(), submission_, this->parts_.limits.max_message_bytes, this->parts_.call_memory,
        [this](int64_t bytes) { return this->charge_.TryGrow(bytes); }, this->request_));
  }
  CancelSource gone() const override { return this->gone_; }

 private:
  void Reply(absl::Status status) override {
    const std::string message = status.ok() ? this->response_.SerializeAsString() : std::string();
    const ReplyOutput output = std::move(this->output_);
    const size_t bytes = status.ok() ? output.bytes : 0;
    this->Note(status, message.size() + bytes);
    this->parts_.common.tracer.End(std::move(this->trace_));
    ByteCharge charge = std::move(this->charge_);
    calls_.End(submission_, status, message, {bytes > 0 ? output.block.chars() : "", bytes}, std::move(charge));
  }

  RingCalls& calls_;
  const gdn_ring_submission submission_;
};

using RingMixedStep = RingStep<v1::StepRequest, v1::StepResponse, MixedMessage, RpcMethod::kStep>;
using RingDecode = RingStep<v1::DecodeRequest, v1::DecodeResponse, DecodeMessage, RpcMethod::kDecode>;
using RingPrefill = RingStep<v1::PrefillRequest, v1::PrefillResponse, PrefillMessage, RpcMethod::kPrefill>;

class RingAccept final : public RingCalls::InFlight, private OwnedFlow<absl::Status> {
 public:
  RingAccept(RingCalls& calls, const gdn_ring_submission& submission, bool /*alone*/)
      : OwnedFlow(calls.parts().common.calls),
        calls_(calls),
        submission_(submission),
        meter_(calls.parts().common.stats, RpcMethod::kAcceptTokens) {}
  void Run() {
    caller_ = calls_.CallerOfNow(gone_, submission_.timeout_us);
    absl::Status read = Read();
    if (!read.ok()) return Ended(std::move(read));
    Start(Accept());
  }
  CancelSource gone() const override { return gone_; }

 private:
  absl::Status Read() {
    GDN_ASSIGN_OR_RETURN(charge_, ChargeCall(calls_.parts().common.access.ledger, caller_,
                                             static_cast<size_t>(RequestBytes(submission_))));
    return ReadRingMessage(
        calls_.ring(), submission_, [this](int64_t bytes) { return charge_.TryGrow(bytes); }, request_);
  }
  Task<absl::Status> Accept() {
    const StepParts& parts = calls_.parts();
    std::vector<WantedSession> wanted = WantedIn(parts.common.lookup, caller_, request_);
    co_await BringHere(parts.common.lookup, caller_, std::move(wanted));
    Task<absl::Status> answer = AcceptTokens(parts, caller_, request_, &response_);
    co_return co_await std::move(answer);
  }
  void Ended(absl::Status status) override {
    const std::string message = status.ok() ? response_.SerializeAsString() : std::string();
    meter_.End(status);
    ByteCharge charge = std::move(charge_);
    calls_.End(submission_, status, message, /*output=*/"", std::move(charge));
  }

  RingCalls& calls_;
  const gdn_ring_submission submission_;
  const RpcMeter meter_;
  CancelSource gone_;
  Caller caller_;
  ByteCharge charge_;
  v1::AcceptTokensRequest request_;
  v1::AcceptTokensResponse response_;
};

}  // namespace

RingCalls::RingCalls(const StepParts& parts, grpc::CallbackServerContext& call, Caller caller,
                     std::shared_ptr<Ring> ring)
    : parts_(parts), call_(call), caller_(std::move(caller)), ring_(std::move(ring)) {}

Caller RingCalls::CallerOfNow(const CancelSource& gone, uint64_t timeout_us) const {
  Caller caller = caller_;
  caller.allowed = StillAllowed(call_, parts_.common.access, caller_);
  // More than a century is the same as none.
  const bool never = timeout_us == 0 || timeout_us > (uint64_t{1} << 52);
  caller.deadline =
      never ? gone.Never() : gone.Until(SteadyNow() + absl::Microseconds(static_cast<int64_t>(timeout_us)));
  return caller;
}

bool RingCalls::FollowsTheRules(const gdn_ring_submission& submission) const {
  uint64_t at = submission.request_offset;
  if (!ring_->Contains(at, submission.message_bytes)) return false;
  at += gdn_ring_aligned(submission.message_bytes);
  for (const uint64_t bytes : submission.tensor_bytes) {
    if (bytes == 0) continue;
    if (!ring_->Contains(at, bytes)) return false;
    at += gdn_ring_aligned(bytes);
  }
  return ring_->Contains(submission.reply_offset, submission.reply_room);
}

template <typename Call>
void RingCalls::Begin(const gdn_ring_submission& submission, bool alone) {
  auto made = std::make_unique<Call>(*this, submission, alone);
  Call* const call = made.get();
  bool is_new = false;
  {
    absl::MutexLock lock(&mu_);
    if (in_flight_.size() < ring_->entries()) is_new = in_flight_.try_emplace(submission.id, std::move(made)).second;
  }
  if (!is_new) return ring_->End(GDN_RING_BROKEN);
  in_flight_count_.Begin();
  call->Run();
}

void RingCalls::Serve(const gdn_ring_submission& submission, bool alone) {
  if (submission.method == GDN_RING_CANCEL) {
    std::optional<CancelSource> gone;
    {
      absl::MutexLock lock(&mu_);
      if (const auto found = in_flight_.find(submission.id); found != in_flight_.end()) gone = found->second->gone();
    }
    if (gone.has_value()) gone->Cancel();
    return;
  }
  if (submission.method == GDN_RING_FETCH) return Fetch(submission);
  if (!FollowsTheRules(submission)) return ring_->End(GDN_RING_BROKEN);
  switch (submission.method) {
    case GDN_RING_STEP:
      return Begin<RingMixedStep>(submission, alone);
    case GDN_RING_DECODE:
      return Begin<RingDecode>(submission, alone);
    case GDN_RING_PREFILL:
      return Begin<RingPrefill>(submission, alone);
    case GDN_RING_ACCEPT_TOKENS:
      return Begin<RingAccept>(submission, alone);
    default:
      return ring_->End(GDN_RING_BROKEN);
  }
}

void RingCalls::CancelAll() {
  std::vector<CancelSource> all;
  {
    absl::MutexLock lock(&mu_);
    for (const auto& [id, call] : in_flight_) all.push_back(call->gone());
  }
  for (CancelSource& gone : all) gone.Cancel();
}

void RingCalls::End(const gdn_ring_submission& submission, const absl::Status& status, std::string_view message,
                    std::string_view output, ByteCharge charge) {
  std::string error;
  if (!status.ok()) {
    error = ToRpcStatus(status).SerializeAsString();
    message = error;
  }
  const uint64_t output_at = output.empty() ? message.size() : gdn_ring_aligned(message.size());
  const uint64_t room = submission.reply_room, bytes = output_at + output.size();
  char* const to = ring_->At(submission.reply_offset);
  if (bytes <= room) {
    std::memcpy(to, message.data(), message.size());
    if (!output.empty()) std::memcpy(to + output_at, output.data(), output.size());
  } else {
    std::string whole(bytes, '\0');
    message.copy(whole.data(), message.size());
    output.copy(whole.data() + output_at, output.size());
    std::memcpy(to, whole.data(), room);
    absl::MutexLock lock(&mu_);
    if (kept_.size() == ring_->entries()) kept_.pop_front();
    kept_.push_back({.id = submission.id, .bytes = std::move(whole), .charge = std::move(charge)});
  }
  charge.Release();
  gdn_ring_completion completion = {};
  completion.id = submission.id;
  completion.code = static_cast<uint32_t>(status.code());
  completion.message_bytes = message.size();
  completion.output_bytes = output.size();
  std::unique_ptr<InFlight> ended;  // destroyed after the lock is released
  {
    absl::MutexLock lock(&mu_);
    const auto found = in_flight_.find(submission.id);
    ended = std::move(found->second);
    in_flight_.erase(found);
  }
  ring_->Complete(completion);
  ended = nullptr;
  in_flight_count_.End();  // last: this object may be gone afterwards
}

void RingCalls::Fetch(const gdn_ring_submission& submission) {
  if (!ring_->Contains(submission.reply_offset, submission.reply_room)) return ring_->End(GDN_RING_BROKEN);
  gdn_ring_completion completion = {};
  completion.id = submission.id;
  completion.code = static_cast<uint32_t>(absl::StatusCode::kNotFound);
  {
    absl::MutexLock lock(&mu_);
    const auto kept = std::ranges::find(kept_, submission.id, &Kept::id);
    if (kept != kept_.end() && submission.request_offset < kept->bytes.size()) {
      const std::string_view left = std::string_view(kept->bytes).substr(submission.request_offset);
      const std::string_view part = left.substr(0, submission.reply_room);
      std::memcpy(ring_->At(submission.reply_offset), part.data(), part.size());
      completion.code = 0;
      completion.message_bytes = part.size();
      if (part.size() == left.size()) kept_.erase(kept);
    }
  }
  ring_->Complete(completion);
}

}  // namespace gdn
