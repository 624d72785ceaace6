#include "client/cpp/testing/fake_server.h"

#include <utility>

#include "client/cpp/testing/fake_gdn_service.h"
#include "client/cpp/testing/server_error.h"

namespace gdn {
namespace {

// The faults of FakeServer, by their numbers.
constexpr Fault kPlanned[] = {Fault::kUnavailable, Fault::kLoseReply,  Fault::kDropReply,
                              Fault::kCrashBefore, Fault::kCrashAfter, Fault::kLoseState};
static_assert(kPlanned[static_cast<size_t>(FakeServer::Fault::kDropReply)] == Fault::kDropReply &&
              kPlanned[static_cast<size_t>(FakeServer::Fault::kLoseState)] == Fault::kLoseState);

}  // namespace

struct FakeServer::Parts {
  explicit Parts(const FakeServer::Options& options)
      : service({.checkpoint_every_tokens = options.checkpoint_every_tokens, .durable_tier = options.durable_tier}) {}

  FakeGdnService service;
  LoopbackServer server{&service};
};

FakeServer::FakeServer() : FakeServer(Options()) {}
FakeServer::FakeServer(Options options) : parts_(std::make_unique<Parts>(options)) {}
FakeServer::~FakeServer() = default;

const std::string& FakeServer::target() const { return parts_->server.target(); }

std::unique_ptr<Client> FakeServer::Connect(ClientOptions options) const {
  // Not gRPC's channel within a process: there a write waits until the other side reads, so that a stream's second step
  // would wait for the first one's reader.
  return Client::Connect(target(), std::move(options));
}

void FakeServer::FailStep(int step, Fault fault) { parts_->service.Plan(step, kPlanned[static_cast<size_t>(fault)]); }

void FakeServer::RefuseNext(const std::string& method, const absl::Status& status) {
  parts_->service.RefuseNext(method, ServerError(status));
}

void FakeServer::Crash() { parts_->service.Crash(); }

void FakeServer::EvictSnapshot(const std::string& key) { parts_->service.EvictSnapshot(key); }

int64_t FakeServer::token_count(const std::string& session, int32_t layer) const {
  return parts_->service.token_count(session, layer);
}

int FakeServer::steps() const { return parts_->service.log().steps; }

}  // namespace gdn
