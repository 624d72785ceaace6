// ImportState: creates a session from a safetensors file that arrives in pieces.
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <spdlog/spdlog.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/task/resume_on.h"
#include "base/task/signal.h"
#include "base/task/status_macros.h"
#include "base/task/task.h"
#include "base/task/task_queue_executor.h"
#include "server/rpc/bring_sessions.h"
#include "server/rpc/callers/call_charge.h"
#include "server/rpc/reactors.h"
#include "server/rpc/session_calls.h"
#include "server/rpc/transfers/state_pieces.h"
#include "server/rpc/transfers/stream_flow.h"
#include "server/rpc/transport/raw_message.h"
#include "server/session/session_errors.h"
#include "server/validation/names.h"
#include "state_store/state_file/head_slices.h"
#include "state_store/state_file/image.h"
#include "state_store/state_file/parse.h"

namespace gdn {
namespace {

constexpr size_t kMessagesAhead = 2;  // messages read ahead while one is processed
// Most bytes of a file's header, and of its part for each layer. ExportState writes less than 3 KiB for each layer.
constexpr int64_t kMostHeaderBytes = int64_t{256} << 10;
constexpr int64_t kMostHeaderLayerBytes = int64_t{16} << 10;
// Bytes of memory for each byte of a header that is parsed: a JSON number of two bytes becomes a node of 16 bytes, and
// strings exist twice, in the header and parsed.
constexpr int64_t kParsedBytes = 16;

absl::Status BadMessage(std::string_view field, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, message, {{"field", std::string(field)}});
}

absl::Status DamagedFile(const std::string& message) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile, message, {{"tensor", "header"}});
}

absl::Status GoneBeforeItsEnd() {
  return MakeError(absl::StatusCode::kCancelled, reason::kCallCancelled,
                   "the client has gone before the import ended; no session was made");
}

absl::Status Exists(const std::string& id) {
  return MakeError(absl::StatusCode::kAlreadyExists, reason::kSessionExists,
                   StrCat(SessionName(id), " exists; choose another id"), {{"session", SessionName(id)}});
}

int64_t MostHeaderBytes(const SessionSpec& spec) {
  return kMostHeaderBytes + static_cast<int64_t>(spec.layers.size()) * kMostHeaderLayerBytes;
}

absl::Status HeaderTooLarge(int64_t found, int64_t expected) {
  return MakeError(
      absl::StatusCode::kResourceExhausted, reason::kMessageTooLarge,
      StrCat("the state file's header has ", found, " bytes; that of the target's layers has at most ", expected),
      {{"found", StrCat(found)}, {"expected", StrCat(expected)}});
}

// Returns the file, or the part of it with the heads that are served here.
absl::StatusOr<StateFile> OwnHeads(const StateFile& file, const SessionSpec& spec) {
  return HasHeads(file, spec.slice) ? TakeHeads(file, spec.slice.heads) : file;
}

absl::Status CheckFits(const StateFile& whole, const SessionSpec& spec, const StateLayout& layout, bool convert) {
  GDN_ASSIGN_OR_RETURN(const StateFile file, OwnHeads(whole, spec));
  std::vector<int32_t> layers;
  for (const StateFileLayer& layer : file.layers) layers.push_back(layer.layer);
  GDN_RETURN_IF_ERROR(CheckStateFits(file.header, layers, spec));
  return convert ? absl::OkStatus() : CheckStateDtype(file, layout);
}

// Reads the call's messages. gRPC's threads read some ahead, and charge each when it arrives.
class ImportReader final : public StreamFlow<grpc::ServerReadReactor<grpc::ByteBuffer>> {
 public:
  struct Arrived {
    grpc::ByteBuffer bytes;
    absl::StatusOr<ByteCharge> charge = ByteCharge();
  };

  ImportReader(const StreamParts& parts, grpc::CallbackServerContext& call)
      : StreamFlow(parts.common, RpcMethod::kImportState, parts.common.transfers.Begin()),
        ledger_(parts.common.access.ledger),
        caller_(CallerOf(call, parts.common.access, gone())) {}

  const Caller& caller() const { return caller_; }
  // Begins to read messages.
  void ReadAhead() {
    absl::MutexLock lock(&mu_);
    ReadOn();
  }
  // The next message; nullopt after the last.
  Task<std::optional<Arrived>> Read() {
    for (uint64_t seen = came_.count(); !HasNext(); seen = came_.count()) co_await came_.WaitBeyond(seen);
    co_return TakeNext();
  }

 private:
  void OnReadDone(bool ok) override {
    {
      absl::MutexLock lock(&mu_);
      read_under_way_ = false;
      if (ok) {
        Arrived message{.bytes = std::exchange(reading_, grpc::ByteBuffer())};
        message.charge = ChargeCall(ledger_, caller_, message.bytes.Length());
        if (!message.charge.ok()) message.bytes.Clear();
        arrived_.push_back(std::move(message));
      } else {
        ended_ = true;
      }
      ReadOn();
    }
    came_.Raise();
  }
  void Ended(absl::Status status) override {
    {
      absl::MutexLock lock(&mu_);
      answered_ = true;
    }
    StreamFlow::Ended(std::move(status));
  }

  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (read_under_way_ || ended_ || answered_ || arrived_.size() >= kMessagesAhead) return;
    read_under_way_ = true;
    StartRead(&reading_);
  }
  bool HasNext() {
    absl::MutexLock lock(&mu_);
    return ended_ || !arrived_.empty();
  }
  std::optional<Arrived> TakeNext() {
    absl::MutexLock lock(&mu_);
    if (arrived_.empty()) return std::nullopt;
    Arrived message = std::move(arrived_.front());
    arrived_.pop_front();
    ReadOn();
    return message;
  }

  ByteLedger& ledger_;
  const Caller caller_;
  grpc::ByteBuffer reading_;  // target of the present read
  Signal came_;               // raised for each message and for the end
  absl::Mutex mu_;
  std::deque<Arrived> arrived_ ABSL_GUARDED_BY(mu_);
  bool read_under_way_ ABSL_GUARDED_BY(mu_) = false;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
};

// A session whose file is arriving. Gives the right to its name back unless it is told to keep it.
class ArrivingSession {
 public:
  // A session that was begun, and the image of its states.
  struct Beginning {
    SessionCreation creation;
    SessionImagePtr image;
  };

  ArrivingSession(const SessionParts& parts, const Caller& caller) : parts_(parts), caller_(caller) {}
  ~ArrivingSession() {
    if (!keeps_name_ && !init_.id.empty()) GiveBackName(parts_.lookup, init_.principal, init_.id);
  }

  // The next message.
  absl::Status Take(grpc::ByteBuffer& bytes) {
    const bool first = !file_.has_value();
    GDN_ASSIGN_OR_RETURN(ImportMessage message,
                         ReadImportMessage(bytes, [this, first](size_t size) -> absl::StatusOr<char*> {
                           if (!first) return file_->Room(size);
                           return BadMessage("target", "the first message must carry target, the later ones data");
                         }));
    bytes.Clear();
    if (first) {
      if (message.payload == ImportMessage::Payload::kTarget) return TakeTarget(std::move(message.target));
      return BadMessage("target", "the first message must carry target, the later ones data");
    }
    if (message.payload != ImportMessage::Payload::kData) {
      return BadMessage("data", "target was sent already; every message after the first must carry data");
    }
    if (message.checksum.has_value() && *message.checksum != Hash64(message.data)) {
      return DamagedFile(StrCat("the ", message.data.size(), " bytes from byte ", file_->bytes().size(),
                                " of the state file on were damaged on their way; send it again"));
    }
    file_->Add(message.data.size());
    if (!state_.has_value()) {
      const absl::StatusOr<uint64_t> header_end = SafetensorsHeaderEnd(file_->bytes());
      if (!header_end.ok()) return absl::OkStatus();  // the header is not complete yet
      GDN_RETURN_IF_ERROR(TakeHeader(*header_end));
    }
    return state_->Check(file_->bytes());
  }

  // Checks that the file is complete. Call after the last message.
  absl::Status CheckWhole() const {
    if (!file_.has_value()) return BadMessage("target", "the stream was empty; send target, then the file's bytes");
    const std::string_view bytes = file_->bytes();
    if (file_->total_bytes() > 0 && bytes.size() != static_cast<size_t>(file_->total_bytes())) {
      return DamagedFile(StrCat("the state file ended after ", bytes.size(), " of ", file_->total_bytes(), " bytes"));
    }
    if (!state_.has_value()) return ParseStateFile(bytes).status();  // returns what is wrong with its header
    return absl::OkStatus();
  }

  // Returns the session's name, if it has one, for BringHere; call once the file is complete.
  std::vector<WantedSession> TakeName() {
    init_.id = IdToMake(parts_.lookup, init_.id);
    return {{.principal = init_.principal, .id = init_.id, .make = true}};
  }
  void KeepName() { keeps_name_ = true; }
  const std::string& lease_name() const { return target_.lease(); }
  void SetLease(ClientLeasePtr lease) { init_.lease = std::move(lease); }

  // Begins the session. Call once the file is complete and the name was brought here.
  absl::StatusOr<Beginning> Begin() {
    GDN_ASSIGN_OR_RETURN(const StateFile whole, state_->Finish(file_->bytes()));
    GDN_ASSIGN_OR_RETURN(const StateFile file, OwnHeads(whole, init_.spec));
    init_.epoch = file.header.epoch;
    Hasher request;
    request.UpdateField("import");
    request.UpdateField(whole.snapshot_id);
    init_.request = request.Finish();
    GDN_ASSIGN_OR_RETURN(SessionCreation creation, parts_.lookup.sessions.Begin(init_));
    if (!creation.pending()) return Exists(init_.id);
    const auto owner = std::make_shared<IncomingFile>(*std::exchange(file_, std::nullopt));
    GDN_ASSIGN_OR_RETURN(SessionImage image, ReadImage(file, layout_, owner, target_.convert_state_dtype()));
    return Beginning{.creation = std::move(creation), .image = std::make_shared<const SessionImage>(std::move(image))};
  }

 private:
  // Checks the target at once, so that a file for nobody is not sent in vain.
  absl::Status TakeTarget(v1::ImportStateRequest::Target target) {
    target_ = std::move(target);
    GDN_RETURN_IF_ERROR(CheckSessionId(target_.session_id()));
    GDN_RETURN_IF_ERROR(CheckAffinity(target_.affinity()));
    if (target_.total_bytes() < 0)
      return BadMessage("total_bytes", "total_bytes is negative; 0 says that it is not known");
    GDN_ASSIGN_OR_RETURN(init_.spec, SpecOf(parts_.models, target_));
    init_.principal = caller_.principal;
    init_.account = caller_.account;
    GDN_RETURN_IF_ERROR(SetLifetimes(parts_, target_, init_));
    if (!target_.lease().empty()) GDN_RETURN_IF_ERROR(ParseLeaseName(target_.lease()).status());
    init_.id = target_.session_id();
    init_.affinity = target_.affinity();
    if (!init_.id.empty() && parts_.lookup.sessions.Find(init_.principal, init_.id).ok()) return Exists(init_.id);
    GDN_ASSIGN_OR_RETURN(layout_, parts_.states.store().LayoutOf(init_.spec.dims));
    GDN_ASSIGN_OR_RETURN(const StateLayout widest, StateLayout::Make(WholeDims(init_.spec.dims, init_.spec.slice.heads),
                                                                     parts_.limits.max_draft));
    // A file has at most, for each layer, the slots of all heads, the folded states and a stored reply, and a header.
    const int64_t layer_bytes = 2 * widest.slot_bytes() + parts_.limits.max_stored_reply_bytes;
    const auto layers = static_cast<int64_t>(init_.spec.layers.size());
    GDN_ASSIGN_OR_RETURN(ByteCharge charge, parts_.access.ledger.TryCharge(BytePool::kCopies, caller_.account, 0));
    file_.emplace(parts_.states.memory(), layers * layer_bytes + MostHeaderBytes(init_.spec), target_.total_bytes(),
                  std::move(charge));
    return file_->CheckTotal();
  }

  // Parses a complete header. Its parsed size is charged to the caller first.
  absl::Status TakeHeader(uint64_t header_end) {
    const auto bytes = static_cast<int64_t>(header_end);
    if (bytes > MostHeaderBytes(init_.spec)) return HeaderTooLarge(bytes, MostHeaderBytes(init_.spec));
    GDN_ASSIGN_OR_RETURN(parsed_,
                         parts_.access.ledger.TryCharge(BytePool::kCopies, caller_.account, kParsedBytes * bytes));
    GDN_ASSIGN_OR_RETURN(ArrivingStateFile state, ArrivingStateFile::Open(file_->bytes(), file_->total_bytes()));
    GDN_RETURN_IF_ERROR(CheckFits(state.header(), init_.spec, layout_, target_.convert_state_dtype()));
    GDN_RETURN_IF_ERROR(file_->Expect(state.file_bytes()));
    // A session of some of the model's layers keeps them. Files of version 0.1.0 do not list layers.
    const std::vector<int32_t>& layers = state.header().header.layers;
    if (!init_.spec.model.empty() && !layers.empty()) init_.spec.layers = layers;
    state_.emplace(std::move(state));
    return absl::OkStatus();
  }

  const SessionParts& parts_;
  const Caller& caller_;
  v1::ImportStateRequest::Target target_;
  SessionInit init_;
  StateLayout layout_;
  std::optional<IncomingFile> file_;
  ByteCharge parsed_;                       // for the header and its parsed form
  std::optional<ArrivingStateFile> state_;  // set once the header is complete
  bool keeps_name_ = false;
};

// Works on each message while later ones are read.
Task<absl::Status> ReceiveFile(ImportReader& in, ArrivingSession& arriving) {
  for (;;) {
    std::optional<ImportReader::Arrived> message = co_await in.Read();
    if (!message.has_value()) co_return absl::OkStatus();
    GDN_CO_RETURN_IF_ERROR(message->charge.status());
    GDN_CO_RETURN_IF_ERROR(arriving.Take(message->bytes));
  }
}

Task<absl::StatusOr<ArrivingSession::Beginning>> BeginSession(ArrivingSession& arriving) { co_return arriving.Begin(); }

// Gives `creation` up if the client has gone.
absl::Status Publish(const SessionParts& parts, grpc::CallbackServerContext& call, const Caller& caller,
                     SessionCreation creation, grpc::ByteBuffer& message) {
  if (call.IsCancelled()) return GoneBeforeItsEnd();
  const Session& session = *creation.session();
  creation.Publish();
  v1::ImportStateResponse response;
  FillSession(parts.states, session, response.mutable_session());
  message = SerializeMessage(response);
  Audit(parts.access, caller, "state_imported", response.session().name());
  spdlog::info("session imported id={} model={} layers={} state_bytes={}{}", session.id(),
               session.spec().model.empty() ? "(operator)" : session.spec().model, session.spec().layers.size(),
               response.session().state_bytes(), TraceForLog(caller.trace));
  return absl::OkStatus();
}

Task<absl::Status> ImportState(const SessionParts& parts, grpc::CallbackServerContext& call, ImportReader& in,
                               grpc::ByteBuffer& response) {
  Caller caller = in.caller();
  GDN_CO_RETURN_IF_ERROR(caller.allowed);
  TaskQueueExecutor io(parts.states.transfer_threads(), caller.account->turn(), parts.timers);
  ArrivingSession arriving(parts, caller);
  in.ReadAhead();
  GDN_CO_RETURN_IF_ERROR(co_await RunOn(io, ReceiveFile(in, arriving)));
  if (call.IsCancelled()) co_return GoneBeforeItsEnd();
  GDN_CO_RETURN_IF_ERROR(arriving.CheckWhole());
  Task<absl::StatusOr<ClientLeasePtr>> named = LeaseNamed(parts, caller, arriving.lease_name());
  GDN_CO_ASSIGN_OR_RETURN(ClientLeasePtr of_client, co_await std::move(named));
  arriving.SetLease(std::move(of_client));
  std::vector<WantedSession> wanted = arriving.TakeName();
  co_await BringHere(parts.lookup, caller, std::move(wanted));
  if (caller.not_here != nullptr) co_return caller.not_here->begin()->second;
  GDN_CO_ASSIGN_OR_RETURN(ArrivingSession::Beginning beginning, co_await RunOn(io, BeginSession(arriving)));
  GDN_CO_ASSIGN_OR_RETURN(const SessionLease lease,
                          co_await parts.states.residency().Place(std::move(beginning.creation.lease()),
                                                                  std::move(beginning.image), caller.deadline));
  const absl::Status published = Publish(parts, call, caller, std::move(beginning.creation), response);
  if (published.ok()) arriving.KeepName();
  co_return published;
}

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* NewImportReactor(const StreamParts& parts, grpc::CallbackServerContext* call,
                                                            grpc::ByteBuffer* response) {
  auto* const in = new ImportReader(parts, *call);
  in->Start(ImportState(parts.sessions, *call, *in, *response));
  return in;
}

}  // namespace gdn
