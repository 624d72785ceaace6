// A client that writes to its ring what it likes (ring/ring_layout.h), against a whole server in this process. The
// input is a program of such a client (ring_program.h). Afterwards another ring and a message call must work, and the
// server must hold nothing of the ring any more.
#include <dirent.h>
#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/files/temporary_folder.h"
#include "google/protobuf/stubs/logging.h"
#include "kernels/null/null_backend.h"
#include "ring/gdn_ring.h"
#include "server/gdn_server.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/ring_program.h"
#include "tests/support/raw_ring.h"

namespace gdn {
namespace {

constexpr int kHeads = 1, kValueHeads = 2, kKeyDim = 4, kValueDim = 4;
constexpr size_t kMostInstructions = 48;
constexpr int kMostOpenings = 3;  // each costs two round trips
constexpr size_t kOfGrpc = 16;    // descriptors that gRPC may open later
constexpr char kHostile[] = "sessions/h";
constexpr char kNeighbour[] = "sessions/neighbour-7d21";  // a name that no changed byte of the other's makes

// Fills a tensor of these dimensions with values that the service accepts, and returns the bytes.
std::string SetTensor(v1::Tensor& tensor, std::vector<int64_t> shape, float value) {
  size_t count = 1;
  for (const int64_t dim : shape) count *= static_cast<size_t>(dim);
  tensor.set_dtype(v1::DTYPE_F32);
  tensor.mutable_shape()->Add(shape.begin(), shape.end());
  const std::vector<float> values(count, value);
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// A call, with its tensors apart.
struct RingCall {
  uint32_t method = 0;
  std::string message;
  std::vector<std::string> tensors;
};

// Gives the request one token of `leading` rows. With `apart`, its tensors come beside the message.
template <typename Request>
RingCall CallOf(uint32_t method, Request request, const std::vector<int64_t>& leading, bool apart) {
  const auto shape = [&leading](std::initializer_list<int64_t> rest) {
    std::vector<int64_t> all = leading;
    all.insert(all.end(), rest);
    return all;
  };
  RingCall call;
  call.method = method;
  v1::DeltaRuleInput& in = *request.mutable_delta_rule();
  const auto add = [&](v1::Tensor& tensor, std::initializer_list<int64_t> rest, float value) {
    std::string bytes = SetTensor(tensor, shape(rest), value);
    if (apart) {
      call.tensors.push_back(std::move(bytes));
    } else {
      tensor.set_data(std::move(bytes));
    }
  };
  add(*in.mutable_q(), {kHeads, kKeyDim}, 0.5f);
  add(*in.mutable_k(), {kHeads, kKeyDim}, 0.5f);
  add(*in.mutable_v(), {kValueHeads, kValueDim}, 1);
  add(*in.mutable_g(), {kValueHeads}, -0.1f);
  add(*in.mutable_beta(), {kValueHeads}, 0.5f);
  call.message = request.SerializeAsString();
  return call;
}

RingCall DecodeOf(const std::string& session, bool draft, bool apart) {
  v1::DecodeRequest request;
  request.add_sessions(session);
  request.set_draft(draft);
  return CallOf(GDN_RING_DECODE, request, {1, 1}, apart);
}

// Returns a call of the hostile session that the server accepts.
RingCall GoodCall(uint8_t kind) {
  const bool apart = (kind & 1) != 0;
  const std::string request_id = (kind & 2) != 0 ? "same" : "";
  switch (kind / 4 % 5) {
    case 0:
      return DecodeOf(kHostile, /*draft=*/false, apart);
    case 1:
      return DecodeOf(kHostile, /*draft=*/true, apart);
    case 2: {
      v1::PrefillRequest request;
      request.set_session(kHostile);
      request.set_request_id(request_id);
      return CallOf(GDN_RING_PREFILL, request, {3}, apart);
    }
    case 3: {
      v1::StepRequest request;
      request.set_request_id(request_id);
      v1::StepRow& row = *request.add_rows();
      row.set_session(kHostile);
      row.set_kind(v1::STEP_KIND_DECODE);
      row.set_token_count(1);
      return CallOf(GDN_RING_STEP, request, {1}, apart);
    }
    default: {
      v1::AcceptTokensRequest request;
      v1::DraftAcceptance& one = *request.add_acceptances();
      one.set_session(kHostile);
      one.set_accepted_tokens(1);
      return {.method = GDN_RING_ACCEPT_TOKENS, .message = request.SerializeAsString(), .tensors = {}};
    }
  }
}

struct Descriptors {
  size_t all = 0;
  size_t rings = 0;  // memories of rings among them
};
Descriptors OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  GDN_FUZZ_CHECK(folder != nullptr, "no list of descriptors");
  Descriptors found;
  while (const dirent* const entry = readdir(folder)) {
    std::array<char, 256> target = {};
    ++found.all;
    if (readlinkat(dirfd(folder), entry->d_name, target.data(), target.size() - 1) < 0) continue;
    if (std::string_view(target.data()).find("gdn-ring") != std::string_view::npos) ++found.rings;
  }
  closedir(folder);
  return found;
}

// The server, which all inputs share, and a client with a ring that keeps the rules.
class World {
 public:
  World() {
    spdlog::set_level(spdlog::level::off);
    google::protobuf::SetLogHandler(nullptr);
    GdnServerOptions options;
    options.memory.device_state_bytes = int64_t{16} << 20;
    options.memory.host_state_bytes = 0;
    options.memory.call_bytes = int64_t{8} << 20;
    options.shared_memory.directory = folder_.path();
    server_ = GdnServer::Make(MakeNullBackend(), std::move(options)).value();
    GDN_FUZZ_CHECK(server_->Start().ok(), "the server does not start");
    grpc::ChannelArguments arguments;
    const auto channel = grpc::CreateCustomChannel("127.0.0.1:" + std::to_string(server_->port()),
                                                   grpc::InsecureChannelCredentials(), arguments);
    stub_ = v1::GdnService::NewStub(channel);
    Create(kNeighbour);
    OpenNeighbour();
    Neighbour();  // what is made at the first call is there
    descriptors_ = OpenDescriptors();
    shared_bytes_ = SharedBytes();
  }

  std::unique_ptr<RawRing> Open() {
    auto ring = RawRing::Open(*stub_, std::make_unique<grpc::ClientContext>());
    GDN_FUZZ_CHECK(ring != nullptr, "no ring is to be had");
    return ring;
  }

  void Create(const std::string& name) {
    v1::CreateSessionRequest request;
    request.set_session_id(name.substr(name.find('/') + 1));
    v1::OperatorSpec& spec = *request.mutable_operator_();
    spec.set_key_heads(kHeads);
    spec.set_value_heads(kValueHeads);
    spec.set_key_dim(kKeyDim);
    spec.set_value_dim(kValueDim);
    Expect(&v1::GdnService::Stub::CreateSession, request, v1::CreateSessionResponse());
  }

  // The owner's last steps may still run, and a session with a step in flight is not deleted.
  void Delete(const std::string& name) {
    v1::DeleteSessionRequest request;
    request.set_name(name);
    grpc::Status ended;
    const bool tried = RawRing::Becomes([&] {
      v1::DeleteSessionResponse response;
      ended = Call(&v1::GdnService::Stub::DeleteSession, request, response);
      return ended.error_code() != grpc::StatusCode::ABORTED;
    });
    GDN_FUZZ_CHECK(tried && ended.ok(), "the session is not deleted: " + ended.error_message());
  }

  // One step of the neighbour in its ring and one in a message: both must be answered.
  void Neighbour() {
    const RingCall call = DecodeOf(kNeighbour, /*draft=*/false, /*apart=*/true);
    gdn_ring_request request = {};
    request.message = call.message.data();
    request.message_bytes = call.message.size();
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      request.tensors[i] = call.tensors[i].data();
      request.tensor_bytes[i] = call.tensors[i].size();
    }
    request.reply_room = 4096;
    gdn_ring_reply reply;
    const int end = gdn_ring_call(neighbour_, call.method, &request, /*timeout_us=*/8'000'000, &reply);
    GDN_FUZZ_CHECK(end == GDN_RING_OK, "the neighbour's ring ended with " + std::to_string(end));
    GDN_FUZZ_CHECK(reply.code == 0 && reply.output_bytes == kValueHeads * kValueDim * sizeof(float),
                   "the neighbour's call ended with " + std::to_string(reply.code));
    gdn_ring_release(neighbour_, &reply);
    ++neighbour_tokens_;
    StepByMessage(kNeighbour, /*must_work=*/true);
    v1::GetSessionRequest look;
    look.set_name(kNeighbour);
    const auto found = Expect(&v1::GdnService::Stub::GetSession, look, v1::GetSessionResponse());
    GDN_FUZZ_CHECK(found.session().layers(0).token_count() == neighbour_tokens_, "the neighbour's tokens");
  }

  void StepByMessage(const std::string& session, bool must_work) {
    const RingCall call = DecodeOf(session, /*draft=*/false, /*apart=*/false);
    v1::DecodeRequest request;
    GDN_FUZZ_CHECK(request.ParseFromString(call.message), "a call that cannot be read");
    v1::DecodeResponse response;
    const grpc::Status status = Call(&v1::GdnService::Stub::Decode, request, response);
    GDN_FUZZ_CHECK(!must_work || status.ok(), status.error_message());
    if (must_work) ++neighbour_tokens_;
  }

  // Checks that nothing of a hostile ring is left.
  void ExpectNothingHeld() {
    const bool given_back = RawRing::Becomes([this] { return SharedBytes() == shared_bytes_; });
    GDN_FUZZ_CHECK(given_back, "shared memory is still charged");
    const bool no_calls = RawRing::Becomes([this] { return server_->ledger().held(BytePool::kCalls) == 0; });
    GDN_FUZZ_CHECK(no_calls, std::to_string(server_->ledger().held(BytePool::kCalls)) + " bytes of calls are held");
    const bool closed = RawRing::Becomes([this] {
      const Descriptors now = OpenDescriptors();
      return now.rings == descriptors_.rings && now.all <= descriptors_.all + kOfGrpc;
    });
    GDN_FUZZ_CHECK(
        closed, std::to_string(OpenDescriptors().all) + " descriptors, at first " + std::to_string(descriptors_.all));
  }

 private:
  template <typename Request, typename Response>
  grpc::Status Call(grpc::Status (v1::GdnService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response& response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(8));
    return (stub_.get()->*method)(&context, request, &response);
  }

  template <typename Request, typename Response>
  Response Expect(grpc::Status (v1::GdnService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response response) {
    const grpc::Status status = Call(method, request, response);
    GDN_FUZZ_CHECK(status.ok(), request.GetTypeName() + ": " + status.error_message());
    return response;
  }

  int64_t SharedBytes() {
    return Expect(&v1::GdnService::Stub::GetServerInfo, v1::GetServerInfoRequest(), v1::GetServerInfoResponse())
        .shared_memory_bytes();
  }

  void OpenNeighbour() {
    v1::ShareMemoryRequest request;
    request.set_bytes(64 << 10);
    request.set_ring_entries(8);
    auto keeper = ShareMemoryCall::Start(*stub_, std::make_unique<grpc::ClientContext>(), request);
    keeper_ = *std::move(keeper);
    const auto response = keeper_->WaitForResponse(absl::Seconds(10));
    GDN_FUZZ_CHECK(response.ok(), response.status().ToString());
    std::array<char, 256> why = {};
    const int error = gdn_ring_open(response->ring().socket_path().c_str(), response->ring().token().data(),
                                    /*spin_us=*/0, /*timeout_us=*/2'000'000, &neighbour_, why.data(), why.size());
    GDN_FUZZ_CHECK(error == 0, why.data());
  }

  const TemporaryFolder folder_ = *TemporaryFolder::Make();
  std::unique_ptr<GdnServer> server_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
  std::unique_ptr<ShareMemoryCall> keeper_;
  gdn_ring* neighbour_ = nullptr;
  int64_t neighbour_tokens_ = 0;
  Descriptors descriptors_;
  int64_t shared_bytes_ = 0;
};

// Runs one program.
class HostileOwner {
 public:
  HostileOwner(World& world, fuzz::Input input) : world_(world), input_(input), ring_(world.Open()) {}

  void Run() {
    for (size_t i = 0; i < kMostInstructions && !input_.empty(); ++i) Do(input_.Byte());
  }

 private:
  uint32_t Word() {
    uint32_t word = 0;
    for (int shift = 0; shift < 32; shift += 8) word |= uint32_t{input_.Byte()} << shift;
    return word;
  }

  void Do(uint8_t instruction) {
    switch (static_cast<RingInstruction>(instruction % kRingInstructions)) {
      case RingInstruction::kStage:
        return Stage(GoodCall(input_.Byte()));
      case RingInstruction::kPatch: {
        const size_t at = input_.Byte() % sizeof(staged_);
        reinterpret_cast<unsigned char*>(&staged_)[at] = input_.Byte();
        return;
      }
      case RingInstruction::kWrite:
        return Write(Word());
      case RingInstruction::kSubmit:
        return ring_->Submit(staged_);
      case RingInstruction::kSubmitRaw: {
        gdn_ring_submission raw = {};
        const std::string_view bytes = input_.Take(sizeof(raw));
        std::memcpy(&raw, bytes.data(), bytes.size());
        return ring_->Submit(raw);
      }
      case RingInstruction::kAnnounce:
        return ring_->Announce((input_.Byte() & 1) != 0 ? ~uint64_t{0} - 1 : Word());
      case RingInstruction::kSetWord:
        return SetWord(input_.Byte(), Word());
      case RingInstruction::kMoveBack: {
        gdn_ring_word& submitted = ring_->header().submitted;
        GDN_RING_STORE(submitted, GDN_RING_LOAD(submitted) + static_cast<uint32_t>(static_cast<int8_t>(input_.Byte())));
        return ring_->Announce(1);
      }
      case RingInstruction::kAwait:
        return Await();
      case RingInstruction::kCancel:
        return Special(GDN_RING_CANCEL);
      case RingInstruction::kFetch:
        return Special(GDN_RING_FETCH);
      case RingInstruction::kReopen:
        if (++openings_ <= kMostOpenings) ring_ = world_.Open();
        return;
      case RingInstruction::kLeave:
        return ring_->Leave();
      case RingInstruction::kMessage:
        return world_.StepByMessage(kHostile, /*must_work=*/false);
      case RingInstruction::kPunch: {
        constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
        const off_t at = static_cast<off_t>(input_.Byte()) * 4096;
        static_cast<void>(!fallocate(ring_->memory_fd(), kPunch, at, static_cast<off_t>(1 + input_.Byte()) * 4096));
        return;
      }
      case RingInstruction::kDisconnect:
        return ring_->CloseConnection();
    }
  }

  // Puts a call into the area, and has its submission ready.
  void Stage(const RingCall& call) {
    constexpr uint64_t kPlace = 4096;  // of a call and its reply; calls in flight have their own
    staged_ = {};
    staged_.id = ++calls_;
    staged_.method = call.method;
    staged_.request_offset = calls_ % 8 * 2 * kPlace;
    staged_.message_bytes = call.message.size();
    char* to = ring_->area() + staged_.request_offset;
    call.message.copy(to, call.message.size());
    to += gdn_ring_aligned(call.message.size());
    for (size_t i = 0; i < call.tensors.size(); ++i) {
      staged_.tensor_bytes[i] = call.tensors[i].size();
      call.tensors[i].copy(to, call.tensors[i].size());
      to += gdn_ring_aligned(call.tensors[i].size());
    }
    staged_.reply_offset = staged_.request_offset + kPlace;
    staged_.reply_room = kPlace;
  }

  void Write(uint32_t where) {
    const std::string_view bytes = input_.Field();
    const size_t at = where % ring_->bytes();
    std::memcpy(ring_->memory() + at, bytes.data(), std::min(bytes.size(), ring_->bytes() - at));
  }

  void SetWord(uint8_t which, uint32_t to) {
    gdn_ring_word* const first = &ring_->header().submitted;
    GDN_RING_STORE(first[which % 6], to);
  }

  void Special(uint32_t method) {
    gdn_ring_submission submission = {};
    submission.id = calls_ - input_.Byte() % 4;
    submission.method = method;
    if (method == GDN_RING_FETCH) {
      submission.request_offset = Word();
      submission.reply_offset = 60 << 10;
      submission.reply_room = input_.Byte();
    }
    ring_->Submit(submission);
  }

  // Waits a little for the server to answer what it has been given.
  void Await() {
    const uint32_t before = GDN_RING_LOAD(ring_->header().completed);
    for (int i = 0; i < 20; ++i) {
      if (GDN_RING_LOAD(ring_->header().completed) != before) return;
      if (GDN_RING_LOAD(ring_->header().ended) != GDN_RING_OPEN) return;
      absl::SleepFor(absl::Microseconds(50));
    }
  }

  World& world_;
  fuzz::Input input_;
  std::unique_ptr<RawRing> ring_;
  gdn_ring_submission staged_ = {};
  uint64_t calls_ = 0;
  int openings_ = 0;
};

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  // It is destroyed never: a fuzz target does not end, and other static objects are still needed by its threads.
  static auto* const world = new World;
  world->Create(kHostile);
  HostileOwner(*world, fuzz::Input(data, size)).Run();
  world->Neighbour();
  world->Delete(kHostile);
  world->ExpectNothingHeld();
  return 0;
}
