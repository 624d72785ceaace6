// One client that is in everybody's way, in as many ways as are known: each kind has threads of its own, which send
// what they have to send without a pause until they are told to stop, and count what they are answered.
//
// Thread safety: RunHostile from one thread; a HostileCaller is for its thread, but Note and over. Ownership: callers
// own their connections.
//
//   const HostileResult result = RunHostile("127.0.0.1:50061", absl::Seconds(60), /*patience=*/absl::Minutes(5));
//   for (const auto& [kind, counts] : result.answers) std::cout << kind;
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/cpp/client.h"
#include "tests/soak/step_feed.h"
#include "tests/support/random.h"

namespace gdn {

// What calls of one kind were answered, and how often: an error's reason and in brackets the pool of memory that it
// names, or its code where it has no reason, or "OK".
using AnswerCounts = std::map<std::string, int64_t>;
using HostileAnswers = std::map<std::string, AnswerCounts>;  // by kind

// What the threads of all kinds share.
class HostileTally {
 public:
  void Note(const std::string& kind, const std::string& answer) {
    absl::MutexLock lock(&mu_);
    ++answers_[kind][answer];
  }
  HostileAnswers answers() const {
    absl::MutexLock lock(&mu_);
    return answers_;
  }
  std::atomic<bool> over = false;

 private:
  mutable absl::Mutex mu_;
  HostileAnswers answers_ ABSL_GUARDED_BY(mu_);
};

// One thread of one kind.
class HostileCaller {
 public:
  // `number`: of the thread among all.
  HostileCaller(HostileTally* tally, std::string kind, std::string target, int number);

  bool over() const { return tally_->over; }
  void Note(const std::string& answer) { tally_->Note(kind_, answer); }
  void Note(const absl::Status& status);

  const std::string& target() const { return target_; }
  // On a connection of this thread's own, under a principal that all kinds share.
  Client& client() { return *client_; }
  v1::GdnService::Stub& stub() { return *stub_; }
  // Metadata of that principal, for calls of the stub.
  void Sign(grpc::ClientContext& context) const;
  // Under another principal than any before, on the same connection.
  std::unique_ptr<Client> Invented();
  // Session ids that no other thread uses.
  std::string NewId();
  // Sends it until it is taken: what others of this client hold may be in its way.
  void Insist(absl::FunctionRef<absl::Status()> send);
  // A new session; its id.
  std::string Made(const StepFeed& feed);

  const StepFeed& small() const { return small_; }
  const StepFeed& large() const { return large_; }  // 1 MiB of state, 4 KiB of output a token
  Random& random() { return random_; }

 private:
  HostileTally* const tally_;
  const std::string kind_;
  const std::string target_;
  const int number_;
  int64_t ids_ = 0;
  Random random_;
  const StepFeed small_;
  const StepFeed large_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<Client> client_;
  const std::unique_ptr<v1::GdnService::Stub> stub_;
};

struct HostileKind {
  std::string name;
  int threads = 1;
  std::set<std::string> refusals;  // one of them has to come; none: the calls are good ones, and "OK" has to come
  void (*run)(HostileCaller& me) = nullptr;  // until me.over()
};

// Requests that should never have been sent.
std::vector<HostileKind> BadRequests();
// Requests that hold what others need, or keep the server busy.
std::vector<HostileKind> GreedyRequests();
// Requests that use up what is not memory: descriptors, and a store that hangs.
std::vector<HostileKind> ExhaustingRequests();
// What the server is to allow the hostile one's address, for the storms of the last.
inline constexpr int kMostHostileConnections = 300;
// Needs a server with a Redis.
inline constexpr const char* kSleepingStore = "sleeping store";

struct HostileResult {
  HostileAnswers answers;
  std::string missing;  // kinds without an answer that they have to have; "": none
};

// Runs all kinds for at least `time`, and on until each has had an answer that it has to have, but for no more than
// `patience`. `only`: names of kinds; none: all. `without`: of one to leave out.
HostileResult RunHostile(const std::string& target, absl::Duration time, absl::Duration patience,
                         const std::vector<std::string>& only = {}, const std::string& without = "");

}  // namespace gdn
