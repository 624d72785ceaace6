#include "tests/soak/hostile.h"

#include <thread>

#include "absl/algorithm/container.h"
#include "absl/time/clock.h"
#include "base/error.h"
#include "base/string_cat.h"
#include "grpcpp/create_channel.h"

namespace gdn {
namespace {

constexpr char kToken[] = "Bearer hostile";

std::shared_ptr<grpc::Channel> OwnConnection(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(-1);
  return grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments);
}

// The kinds that have not had an answer that they have to have, with what they had.
std::string Missing(const std::vector<HostileKind>& kinds, const HostileAnswers& answers) {
  std::string missing;
  for (const HostileKind& kind : kinds) {
    const auto found = answers.find(kind.name);
    bool had = false;
    std::string text;
    if (found != answers.end()) {
      for (const auto& [answer, count] : found->second) {
        had |= kind.refusals.empty() ? answer == "OK" : kind.refusals.contains(answer);
        text += StrCat(" ", answer, ": ", count);
      }
    }
    if (!had) missing += StrCat(missing.empty() ? "" : "; ", kind.name, " had", text.empty() ? " no answer" : text);
  }
  return missing;
}

}  // namespace

HostileCaller::HostileCaller(HostileTally* tally, std::string kind, std::string target, int number)
    : tally_(tally),
      kind_(std::move(kind)),
      target_(std::move(target)),
      number_(number),
      random_(static_cast<uint64_t>(number) + 1),
      small_({}),
      large_({.key_heads = 8, .value_heads = 16, .key_dim = 64, .value_dim = 64, .layers = 4}),
      channel_(OwnConnection(target_)),
      client_(std::make_unique<Client>(channel_, ClientOptions{.token = kToken})),
      stub_(v1::GdnService::NewStub(channel_)) {}

void HostileCaller::Note(const absl::Status& status) {
  std::string answer = ErrorReason(status);
  if (answer.empty()) answer = absl::StatusCodeToString(status.code());
  const ErrorMetadataMap metadata = ErrorMetadata(status);
  if (const auto pool = metadata.find("pool"); pool != metadata.end()) answer += StrCat(" (", pool->second, ")");
  Note(answer);
}

void HostileCaller::Sign(grpc::ClientContext& context) const {
  context.AddMetadata("authorization", kToken);
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Minutes(1)));
}

std::unique_ptr<Client> HostileCaller::Invented() {
  return std::make_unique<Client>(channel_, ClientOptions{.token = StrCat("Bearer ", NewId())});
}

std::string HostileCaller::NewId() { return StrCat("hostile-", number_, "-", ids_++); }

void HostileCaller::Insist(absl::FunctionRef<absl::Status()> send) {
  while (!over()) {
    const absl::Status status = send();
    Note(status);
    if (!absl::IsResourceExhausted(status) && !absl::IsUnavailable(status)) return;
  }
}

std::string HostileCaller::Made(const StepFeed& feed) {
  const std::string id = NewId();
  Insist([&] { return client().CreateSession(feed.Creation(id)).status(); });
  return id;
}

HostileResult RunHostile(const std::string& target, absl::Duration time, absl::Duration patience,
                         const std::vector<std::string>& only, const std::string& without) {
  std::vector<HostileKind> kinds = BadRequests();
  for (HostileKind& kind : GreedyRequests()) kinds.push_back(std::move(kind));
  for (HostileKind& kind : ExhaustingRequests()) kinds.push_back(std::move(kind));
  std::erase_if(kinds, [&](const HostileKind& kind) { return kind.name == without; });
  if (!only.empty()) {
    std::erase_if(kinds, [&](const HostileKind& kind) { return !absl::c_linear_search(only, kind.name); });
  }
  HostileTally tally;
  std::vector<std::thread> threads;
  for (const HostileKind& kind : kinds) {
    for (int i = 0; i < kind.threads; ++i) {
      threads.emplace_back([&tally, &kind, &target, number = static_cast<int>(threads.size())] {
        HostileCaller me(&tally, kind.name, target, number);
        kind.run(me);
      });
    }
  }
  const absl::Time end = absl::Now() + time;
  std::string missing;
  do {
    absl::SleepFor(absl::Milliseconds(50));
    missing = Missing(kinds, tally.answers());
  } while (absl::Now() < end || (!missing.empty() && absl::Now() < end + patience));
  tally.over = true;
  for (std::thread& thread : threads) thread.join();
  return {.answers = tally.answers(), .missing = missing};
}

}  // namespace gdn
