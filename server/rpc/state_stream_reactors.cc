// ExportState, a session's states as one safetensors file, and WatchState, the same again as the session advances.
#include <grpcpp/alarm.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/steady_clock.h"
#include "base/string_cat.h"
#include "gdn/v1/state.pb.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/calls.h"
#include "server/rpc/raw_message.h"
#include "server/rpc/reactors.h"
#include "server/rpc/rpc_status.h"
#include "server/rpc/state_pieces.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

absl::Status ClientGone() {
  return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled, "the client has gone");
}

// Sends one state file at a time, piece by piece; the next piece is made ready while the one before is on its way.
//
// Thread safety: Send from one thread at a time, not before the file before has been sent. Ownership: deletes itself
// when the call is over. A derived class calls End once, and only while nothing of its own is under way.
class FileReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 protected:
  FileReactor(const ServiceContext& context, RpcMethod method) : meter_(context.stats, method) {}

  void End(const absl::Status& status) {
    meter_.End(status);
    Finish(ToGrpcStatus(status));
  }
  // Ends in OnFileSent, or ends the call where the client does not read any more.
  void Send(FilePieces pieces);

  virtual void OnFileSent() = 0;

 private:
  void OnWriteDone(bool ok) final;
  void OnDone() final { delete this; }
  void SendNext();
  // True where the next piece is to be sent.
  bool Advance();

  const RpcMeter meter_;
  FilePieces pieces_;
  grpc::ByteBuffer writing_;
  grpc::ByteBuffer next_;
  bool has_next_ = false;
  bool broken_ = false;
  // The write of this piece and the making of the next: whoever is last goes on.
  std::atomic<int> under_way_{0};
};

void FileReactor::Send(FilePieces pieces) {
  pieces_ = std::move(pieces);
  writing_ = pieces_.Next();
  SendNext();
}

void FileReactor::SendNext() {
  do {
    under_way_.store(2);
    StartWrite(&writing_);
    has_next_ = !pieces_.done();
    if (has_next_) next_ = pieces_.Next();
    if (under_way_.fetch_sub(1) != 1) return;  // OnWriteDone goes on
  } while (Advance());
}

void FileReactor::OnWriteDone(bool ok) {
  if (!ok) broken_ = true;
  if (under_way_.fetch_sub(1) == 1 && Advance()) SendNext();
}

bool FileReactor::Advance() {
  if (!broken_ && has_next_) {
    writing_.Swap(&next_);
    next_.Clear();
    return true;
  }
  pieces_ = FilePieces();
  writing_.Clear();
  next_.Clear();
  broken_ ? End(ClientGone()) : OnFileSent();
  return false;
}

absl::StatusOr<StateFileOptions> OptionsOf(const v1::ExportStateRequest& request) {
  StateFileOptions options;
  options.include_recurrent_state = request.include_recurrent_state();
  switch (request.recurrent_state_dtype()) {
    case v1::DTYPE_UNSPECIFIED:
    case v1::DTYPE_F32:
      return options;
    case v1::DTYPE_BF16:
      options.recurrent_state_dtype = DType::kBF16;
      return options;
    default:
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorDtype,
                       StrCat("recurrent_state_dtype is ", v1::DType_Name(request.recurrent_state_dtype()),
                              ", expected DTYPE_F32 or DTYPE_BF16"),
                       {{"field", "recurrent_state_dtype"}});
  }
}

// What a file takes at most: the states as they are on the device, and what is written another way beside them.
int64_t FileBytes(const ServiceContext& context, const Session& session, const StateFileOptions& options) {
  return (options.include_recurrent_state ? 3 : 2) * context.room.BytesOf(session);
}

std::string ExportTail(const PieceTail& tail) {
  v1::ExportStateResponse rest;
  rest.set_offset(tail.offset);
  rest.set_total_bytes(tail.total_bytes);
  rest.set_checksum(tail.checksum);
  return rest.SerializeAsString();
}

class ExportReactor final : public FileReactor {
 public:
  ExportReactor(const ServiceContext& context, grpc::CallbackServerContext* call, const grpc::ByteBuffer* message)
      : FileReactor(context, RpcMethod::kExportState),
        context_(context),
        call_(call),
        open_(context.transfers.Begin()) {
    if (absl::Status status = Begin(*message); !status.ok()) End(status);
  }

 private:
  absl::Status Begin(const grpc::ByteBuffer& message) {
    caller_ = CallerOf(*call_, context_);
    GDN_RETURN_IF_ERROR(caller_.allowed);
    GDN_ASSIGN_OR_RETURN(const auto request, ParseMessage<v1::ExportStateRequest>(message));
    name_ = request.name();
    epoch_ = EpochOf(request);
    GDN_ASSIGN_OR_RETURN(options_, OptionsOf(request));
    BringSessions(context_, caller_, WantedIn(context_, caller_, request), [this](const Caller& brought) {
      if (absl::Status status = Export(brought); !status.ok()) End(status);
    });
    return absl::OkStatus();
  }

  absl::Status Export(const Caller& brought) {
    GDN_ASSIGN_OR_RETURN(const auto session, FindSession(context_, brought, name_));
    GDN_RETURN_IF_ERROR(CheckEpoch(*session, epoch_));
    GDN_ASSIGN_OR_RETURN(charge_, context_.ledger.TryCharge(BytePool::kCopies, caller_.account,
                                                            FileBytes(context_, *session, options_)));
    const auto encode = [this](absl::StatusOr<CapturedState> captured) {
      if (absl::Status status = Encode(std::move(captured)); !status.ok()) End(status);
    };
    context_.checkpointer.Capture(session, /*known=*/nullptr, encode, caller_.limit, epoch_);
    return absl::OkStatus();
  }

  absl::Status Encode(absl::StatusOr<CapturedState> captured) {
    GDN_RETURN_IF_ERROR(captured.status());
    captured->held.Release();  // what is sent is a copy
    if (call_->IsCancelled()) return ClientGone();
    GDN_ASSIGN_OR_RETURN(EncodedStateFile file,
                         EncodeStateFile(std::move(captured->image), options_, &context_.copiers));
    Send(FilePieces(std::move(file), ExportTail));
    return absl::OkStatus();
  }

  void OnFileSent() override {
    Audit(context_, caller_, "state_exported", name_);
    End(absl::OkStatus());
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  const std::shared_ptr<void> open_;  // a drain waits for it
  StateFileOptions options_;
  ByteCharge charge_;  // of the file
  Caller caller_;
  std::string name_;
  std::optional<int64_t> epoch_;  // that the caller knows
};

// How often a session is looked at: soon after it has moved, less often while it rests.
constexpr absl::Duration kShortestLook = absl::Milliseconds(2);
constexpr absl::Duration kLongestLook = absl::Milliseconds(20);

struct WatchPlan {
  int64_t every_tokens = 0;  // 0: not by tokens
  absl::Duration every = absl::InfiniteDuration();
};

absl::Status BadPlan(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, message, {{"field", std::string(field)}});
}

absl::StatusOr<WatchPlan> PlanOf(const v1::WatchStateRequest& request) {
  WatchPlan plan{.every_tokens = request.every_tokens()};
  if (plan.every_tokens < 0) {
    return BadPlan("every_tokens",
                   StrCat("every_tokens is ", plan.every_tokens, ", expected at least 1, or 0 for none"));
  }
  if (request.has_every()) {
    plan.every = absl::Seconds(request.every().seconds()) + absl::Nanoseconds(request.every().nanos());
    if (plan.every <= absl::ZeroDuration()) {
      return BadPlan("every", StrCat("every is ", absl::FormatDuration(plan.every), ", expected more than 0"));
    }
  } else if (plan.every_tokens == 0) {
    return BadPlan("every", "neither every_tokens nor every is set; say when a snapshot is wanted");
  }
  return plan;
}

// What a session has come to: compared with what the last snapshot holds.
struct Progress {
  int64_t epoch = 0;
  std::vector<LayerProgress> layers;

  static Progress Of(int64_t epoch, const std::vector<LayerInfo>& infos) {
    Progress progress{.epoch = epoch, .layers = {}};
    for (const LayerInfo& info : infos) progress.layers.push_back(info.progress);
    return progress;
  }
  bool MovedFrom(const Progress& last) const { return epoch != last.epoch || layers != last.layers; }
  int64_t TokensFrom(const Progress& last) const {
    int64_t most = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      most = std::max<int64_t>(most, std::abs(layers[i].token_count - last.layers[i].token_count));
    }
    return most;
  }
};

class WatchReactor final : public FileReactor {
 public:
  WatchReactor(const ServiceContext& context, grpc::CallbackServerContext* call, const grpc::ByteBuffer* message)
      : FileReactor(context, RpcMethod::kWatchState), context_(context), call_(call) {
    if (absl::Status status = Begin(*message); !status.ok()) End(status);
  }

 private:
  absl::Status Begin(const grpc::ByteBuffer& message) {
    caller_ = CallerOf(*call_, context_);
    GDN_RETURN_IF_ERROR(caller_.allowed);
    GDN_ASSIGN_OR_RETURN(const auto request, ParseMessage<v1::WatchStateRequest>(message));
    GDN_ASSIGN_OR_RETURN(plan_, PlanOf(request));
    epoch_ = EpochOf(request);
    BringSessions(context_, caller_, WantedIn(context_, caller_, request),
                  [this, name = request.name()](const Caller& brought) {
                    auto session = FindSession(context_, brought, name);
                    if (!session.ok()) return End(session.status());
                    session_ = *std::move(session);
                    if (absl::Status other = CheckEpoch(*session_, epoch_); !other.ok()) return End(other);
                    Audit(context_, caller_, "state_watched", name);
                    WaitForMemory();
                  });
    return absl::OkStatus();
  }

  // One of these at a time, each leading to the next: wait for memory, capture, send, wait.
  void WaitForMemory() {
    context_.ledger.WhenCharged(BytePool::kCopies, caller_.account, FileBytes(context_, *session_, {}),
                                [this](ByteCharge charge) {
                                  charge_ = std::move(charge);
                                  Capture();
                                });
  }

  void Capture() {
    const auto known = [this] { return refresh_ ? BaseVersions() : full_bases_; };
    const auto encode = [this](absl::StatusOr<CapturedState> captured) {
      if (absl::Status status = Encode(std::move(captured)); !status.ok()) End(status);
    };
    context_.checkpointer.Capture(session_, known, encode, caller_.limit, epoch_);
  }

  absl::Status Encode(absl::StatusOr<CapturedState> captured) {
    GDN_RETURN_IF_ERROR(captured.status());
    captured->held.Release();  // what is sent is a copy
    GDN_RETURN_IF_ERROR(CheckWanted());
    const SessionImagePtr image = std::move(captured->image);
    last_ = Progress::Of(image->header.epoch, captured->layers);
    last_time_ = captured->when.at;

    const auto has_known_base = [this](const LayerImage& layer) {
      const auto known = full_bases_.find(layer.layer);
      return known != full_bases_.end() && known->second == layer.base_version;
    };
    const bool delta = !refresh_ && std::any_of(image->layers.begin(), image->layers.end(), has_known_base);
    StateFileOptions options;
    if (delta) {
      options.base_snapshot_id = full_id_;
      options.known_bases = full_bases_;
    }
    GDN_ASSIGN_OR_RETURN(EncodedStateFile file, EncodeStateFile(image, options, &context_.copiers));
    if (delta) {
      // Once most bases are others, a full file now makes the deltas after it small again.
      refresh_ = 2 * file.bytes() > full_bytes_;
    } else {
      refresh_ = false;
      full_id_ = file.snapshot_id();
      full_bytes_ = file.bytes();
      full_bases_.clear();
      for (const LayerImage& layer : image->layers) {
        if (layer.base_version != 0) full_bases_[layer.layer] = layer.base_version;
      }
    }
    Send(FilePieces(std::move(file), [sequence = sequence_++, delta](const PieceTail& tail) {
      v1::WatchStateResponse rest;
      rest.set_offset(tail.offset);
      rest.set_total_bytes(tail.total_bytes);
      rest.set_checksum(tail.checksum);
      rest.set_sequence(sequence);
      rest.set_delta(delta);
      return rest.SerializeAsString();
    }));
    return absl::OkStatus();
  }

  void OnFileSent() override {
    charge_.Release();
    look_after_ = kShortestLook;
    Wait();
  }

  void Wait() {
    alarm_ = std::make_unique<grpc::Alarm>();
    alarm_->Set(absl::ToChronoTime(absl::Now() + look_after_), [this](bool /*ok*/) { Look(); });
  }

  // OK where the stream goes on.
  absl::Status CheckWanted() const {
    if (call_->IsCancelled()) return ClientGone();
    GDN_RETURN_IF_ERROR(StillAllowed(*call_, context_, caller_));
    if (context_.engines.draining()) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                       "the server is shutting down; watch the session where it goes on");
    }
    GDN_RETURN_IF_ERROR(session_->CheckAlive());
    return CheckEpoch(*session_, epoch_);
  }

  void Look() {
    if (absl::Status status = CheckWanted(); !status.ok()) return End(status);
    const Progress now = Progress::Of(session_->epoch(), session_->Layers());
    const bool moved = now.MovedFrom(last_);
    const bool by_tokens =
        plan_.every_tokens > 0 && (now.epoch != last_.epoch || now.TokensFrom(last_) >= plan_.every_tokens);
    if (by_tokens || (moved && SteadyNow() - last_time_ >= plan_.every)) return WaitForMemory();
    look_after_ = now.MovedFrom(seen_) ? kShortestLook : std::min(2 * look_after_, kLongestLook);
    seen_ = now;
    Wait();
  }

  const ServiceContext& context_;
  grpc::CallbackServerContext* const call_;
  WatchPlan plan_;
  std::optional<int64_t> epoch_;  // that the caller knows
  Caller caller_;
  ByteCharge charge_;  // of the file that is made or sent
  std::shared_ptr<Session> session_;
  std::unique_ptr<grpc::Alarm> alarm_;  // a new one each time: it is still running when the next is set
  absl::Duration look_after_ = kShortestLook;
  int64_t sequence_ = 0;
  // The last snapshot, and what was there when last looked at.
  Progress last_;
  SteadyTime last_time_;
  Progress seen_;
  // The last full file.
  std::string full_id_;
  int64_t full_bytes_ = 0;
  BaseVersions full_bases_;
  bool refresh_ = false;  // the next is to be full
};

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const ServiceContext& context,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request) {
  return new ExportReactor(context, call, request);
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const ServiceContext& context,
                                                            grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request) {
  return new WatchReactor(context, call, request);
}

}  // namespace gdn
