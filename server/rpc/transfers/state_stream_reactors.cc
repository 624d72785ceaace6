// ExportState sends a session's states as one safetensors file; WatchState sends them again and again as the session
// advances.
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/sleep.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_queue_executor.h"
#include "base/threads/steady_clock.h"
#include "gdn/v1/state.pb.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/reactors.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/transfers/state_pieces.h"
#include "server/rpc/transfers/stream_flow.h"
#include "server/rpc/transport/raw_message.h"
#include "server/session/session_errors.h"

namespace gdn {
namespace {

using FileWriter = StreamWriter<grpc::ByteBuffer>;

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

// Most bytes of a file: the states as on the device, and those that are also written in another form.
int64_t FileBytes(DeviceRoom& room, const Session& session, const StateFileOptions& options) {
  return (options.include_recurrent_state ? 3 : 2) * room.BytesOf(session);
}

std::string ExportTail(const PieceTail& tail) {
  v1::ExportStateResponse rest;
  rest.set_offset(tail.offset);
  rest.set_total_bytes(tail.total_bytes);
  rest.set_checksum(tail.checksum);
  return rest.SerializeAsString();
}

Task<absl::StatusOr<EncodedStateFile>> Encode(const SessionParts& parts, const Caller& caller, SessionImagePtr image,
                                              StateFileOptions options) {
  TaskQueueExecutor io(parts.states.transfer_threads(), caller.account->turn(), parts.timers);
  options.list_layers = true;
  Executor& here = co_await ThisExecutor();
  co_await ResumeOn(io);
  absl::StatusOr<EncodedStateFile> file = EncodeStateFile(std::move(image), options, &parts.states.copiers());
  co_await ReturnTo(here);
  co_return file;
}

// Sends a file piece by piece. The next piece is made while the last one is being sent.
Task<absl::Status> SendFile(FileWriter& out, FilePieces pieces) {
  grpc::ByteBuffer piece = pieces.Next();
  for (bool last = false; !last;) {
    out.Write(piece);
    last = pieces.done();
    grpc::ByteBuffer next;
    if (!last) next = pieces.Next();
    GDN_CO_RETURN_IF_ERROR(co_await out.Written());
    piece.Swap(&next);
  }
  co_return absl::OkStatus();
}

Task<absl::Status> ExportState(const StreamParts& parts, grpc::CallbackServerContext& call,
                               const grpc::ByteBuffer& message, FileWriter& out) {
  Caller caller = CallerOf(call, parts.common.access, out.gone());
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  GDN_CO_ASSIGN_OR_RETURN(const auto request, ParseMessage<v1::ExportStateRequest>(message));
  const std::optional<int64_t> epoch = EpochOf(request);
  GDN_CO_ASSIGN_OR_RETURN(const StateFileOptions options, OptionsOf(request));
  std::vector<WantedSession> wanted = WantedIn(parts.common.lookup, caller, request);
  co_await BringHere(parts.common.lookup, caller, std::move(wanted));
  GDN_CO_ASSIGN_OR_RETURN(std::shared_ptr<Session> session, FindSession(parts.common.lookup, caller, request.name()));
  GDN_CO_RETURN_IF_ERROR(CheckEpoch(*session, epoch));
  GDN_CO_ASSIGN_OR_RETURN(const ByteCharge charge, parts.common.access.ledger.TryCharge(
                                                       BytePool::kCopies, caller.account,
                                                       FileBytes(parts.sessions.states.room(), *session, options)));
  GDN_CO_ASSIGN_OR_RETURN(CapturedState captured, co_await parts.sessions.states.checkpointer().Capture(
                                                      std::move(session), /*known=*/nullptr, caller.deadline, epoch));
  captured.held.Release();  // the file is made from the copy
  if (call.IsCancelled()) co_return ClientGone();
  GDN_CO_ASSIGN_OR_RETURN(EncodedStateFile file,
                          co_await Encode(parts.sessions, caller, std::move(captured.image), options));
  GDN_CO_RETURN_IF_ERROR(co_await SendFile(out, FilePieces(std::move(file), ExportTail)));
  Audit(parts.common.access, caller, "state_exported", request.name());
  co_return absl::OkStatus();
}

// How often a watched session is checked: often after it has advanced, less often while it rests.
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

// A session's progress, to compare with the last snapshot.
struct Progress {
  int64_t epoch = 0;
  int64_t resets = 0;
  std::vector<LayerProgress> layers;

  static Progress Of(int64_t epoch, int64_t resets, const std::vector<LayerInfo>& infos) {
    Progress progress{.epoch = epoch, .resets = resets, .layers = {}};
    for (const LayerInfo& info : infos) progress.layers.push_back(info.progress);
    return progress;
  }
  // True if the session went back: equal counts then say nothing.
  bool WentBackFrom(const Progress& last) const { return epoch != last.epoch || resets != last.resets; }
  bool MovedFrom(const Progress& last) const { return WentBackFrom(last) || layers != last.layers; }
  int64_t TokensFrom(const Progress& last) const {
    int64_t most = 0;
    for (size_t i = 0; i < layers.size(); ++i) {
      most = std::max<int64_t>(most, std::abs(layers[i].token_count - last.layers[i].token_count));
    }
    return most;
  }
};

// A session that a client watches.
struct Watched {
  // OK if the stream may continue.
  absl::Status CheckWanted() const {
    if (call.IsCancelled()) return ClientGone();
    GDN_RETURN_IF_ERROR(StillAllowed(call, parts.common.access, caller));
    if (parts.engines.draining()) {
      return MakeError(absl::StatusCode::kUnavailable, reason::kServerDraining,
                       "the server is shutting down; watch the session on the server that has it next");
    }
    GDN_RETURN_IF_ERROR(session->CheckAlive());
    return CheckEpoch(*session, epoch);
  }

  const StreamParts& parts;
  grpc::CallbackServerContext& call;
  const Caller& caller;
  const std::shared_ptr<Session> session;
  const std::optional<int64_t> epoch;  // the epoch that the caller knows
};

// The last full file that a watching client has received. Later files may be deltas to it.
class LastFullFile {
 public:
  // Bases that the next file may leave out; none if it must be a full file.
  BaseVersions KnownBases() const { return refresh_ ? BaseVersions() : bases_; }
  // True if the file of the image should be a delta.
  bool IsBaseOf(const SessionImage& image) const {
    const auto is_known = [this](const LayerImage& layer) {
      const auto known = bases_.find(layer.layer);
      return known != bases_.end() && known->second == layer.base_version;
    };
    return !refresh_ && std::any_of(image.layers.begin(), image.layers.end(), is_known);
  }
  StateFileOptions OptionsOfDelta() const {
    StateFileOptions options;
    options.base_snapshot_id = id_;
    options.known_bases = bases_;
    return options;
  }
  // `bases`: of the image that the file was made from.
  void NoteFull(const EncodedStateFile& file, BaseVersions bases) {
    refresh_ = false;
    id_ = file.snapshot_id();
    bytes_ = file.bytes();
    bases_ = std::move(bases);
  }
  // If a delta is larger than half the full file, most bases have changed. The next file is then full, so that later
  // deltas are small again.
  void NoteDelta(const EncodedStateFile& file) { refresh_ = 2 * file.bytes() > bytes_; }

 private:
  std::string id_;
  int64_t bytes_ = 0;
  BaseVersions bases_;
  bool refresh_ = false;  // the next file must be full
};

BaseVersions BasesOf(const SessionImage& image) {
  BaseVersions bases;
  for (const LayerImage& layer : image.layers) {
    if (layer.base_version != 0) bases[layer.layer] = layer.base_version;
  }
  return bases;
}

FilePieces::TailFn WatchTail(int64_t sequence, bool delta) {
  return [sequence, delta](const PieceTail& tail) {
    v1::WatchStateResponse rest;
    rest.set_offset(tail.offset);
    rest.set_total_bytes(tail.total_bytes);
    rest.set_checksum(tail.checksum);
    rest.set_sequence(sequence);
    rest.set_delta(delta);
    return rest.SerializeAsString();
  };
}

// Waits until the session has advanced so far beyond the captured state that the plan requires another file.
Task<absl::Status> WaitUntilMoved(const Watched& watched, WatchPlan plan, Progress captured, SteadyTime captured_at) {
  Progress seen = captured;
  absl::Duration pause = kShortestLook;
  for (;;) {
    GDN_CO_RETURN_IF_ERROR(co_await SleepUntil(watched.parts.common.calls.Now() + pause, watched.caller.deadline));
    GDN_CO_RETURN_IF_ERROR(watched.CheckWanted());
    const int64_t resets = watched.session->resets();
    Progress now = Progress::Of(watched.session->epoch(), resets, watched.session->Layers());
    const bool by_tokens =
        plan.every_tokens > 0 && (now.WentBackFrom(captured) || now.TokensFrom(captured) >= plan.every_tokens);
    const bool by_time = now.MovedFrom(captured) && SteadyNow() - captured_at >= plan.every;
    if (by_tokens || by_time) co_return absl::OkStatus();
    pause = now.MovedFrom(seen) ? kShortestLook : std::min(2 * pause, kLongestLook);
    seen = std::move(now);
  }
}

Task<absl::Status> WatchState(const StreamParts& parts, grpc::CallbackServerContext& call,
                              const grpc::ByteBuffer& message, FileWriter& out) {
  Caller caller = CallerOf(call, parts.common.access, out.gone());
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  GDN_CO_ASSIGN_OR_RETURN(const auto request, ParseMessage<v1::WatchStateRequest>(message));
  GDN_CO_ASSIGN_OR_RETURN(const WatchPlan plan, PlanOf(request));
  const std::optional<int64_t> epoch = EpochOf(request);
  std::vector<WantedSession> wanted = WantedIn(parts.common.lookup, caller, request);
  co_await BringHere(parts.common.lookup, caller, std::move(wanted));
  GDN_CO_ASSIGN_OR_RETURN(const std::shared_ptr<Session> session,
                          FindSession(parts.common.lookup, caller, request.name()));
  GDN_CO_RETURN_IF_ERROR(CheckEpoch(*session, epoch));
  Audit(parts.common.access, caller, "state_watched", request.name());
  const Watched watched{.parts = parts, .call = call, .caller = caller, .session = session, .epoch = epoch};
  const int64_t file_bytes = FileBytes(parts.sessions.states.room(), *session, StateFileOptions());
  LastFullFile full;
  const Checkpointer::KnownBases known = [&full] { return full.KnownBases(); };
  for (int64_t sequence = 0;; ++sequence) {
    GDN_CO_ASSIGN_OR_RETURN(ByteCharge charge, co_await parts.common.access.ledger.WaitForCharge(
                                                   BytePool::kCopies, caller.account, file_bytes, caller.deadline));
    const int64_t resets = session->resets();  // before the copy: a reset during it asks for another copy
    GDN_CO_ASSIGN_OR_RETURN(CapturedState captured, co_await parts.sessions.states.checkpointer().Capture(
                                                        session, known, caller.deadline, epoch));
    captured.held.Release();  // the file is made from the copy
    GDN_CO_RETURN_IF_ERROR(watched.CheckWanted());
    Progress progress = Progress::Of(captured.image->header.epoch, resets, captured.layers);
    BaseVersions bases = BasesOf(*captured.image);
    const bool delta = full.IsBaseOf(*captured.image);
    StateFileOptions options;
    if (delta) options = full.OptionsOfDelta();
    GDN_CO_ASSIGN_OR_RETURN(EncodedStateFile file,
                            co_await Encode(parts.sessions, caller, std::move(captured.image), std::move(options)));
    delta ? full.NoteDelta(file) : full.NoteFull(file, std::move(bases));
    GDN_CO_RETURN_IF_ERROR(co_await SendFile(out, FilePieces(std::move(file), WatchTail(sequence, delta))));
    charge.Release();
    GDN_CO_RETURN_IF_ERROR(co_await WaitUntilMoved(watched, plan, std::move(progress), captured.when.at));
  }
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewExportReactor(const StreamParts& parts,
                                                             grpc::CallbackServerContext* call,
                                                             const grpc::ByteBuffer* request) {
  auto* const out = new FileWriter(parts.common, RpcMethod::kExportState, parts.common.transfers.Begin());
  out->Start(ExportState(parts, *call, *request, *out));
  return out;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* NewWatchReactor(const StreamParts& parts, grpc::CallbackServerContext* call,
                                                            const grpc::ByteBuffer* request) {
  auto* const out = new FileWriter(parts.common, RpcMethod::kWatchState);
  out->Start(WatchState(parts, *call, *request, *out));
  return out;
}

}  // namespace gdn
