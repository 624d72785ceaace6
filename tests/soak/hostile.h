// A hostile client that disturbs others in many ways. Each kind of attack has its own threads, which send without a
// pause until they are told to stop, and count the answers.
//
// Thread safety: call RunHostile from one thread; a HostileCaller is for its own thread, except Note and over.
// Ownership: callers own their connections.
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

// Numbers of answers, by answer: an error's reason (with the memory pool that it names in brackets), its code if it has
// no reason, or "OK".
using AnswerCounts = std::map<std::string, int64_t>;
using HostileAnswers = std::map<std::string, AnswerCounts>;  // by kind

inline std::string SessionName(const std::string& id) { return "sessions/" + id; }

// The answers of all threads, and the signal for them to stop.
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
  // `number`: number of the thread among all threads.
  HostileCaller(HostileTally* tally, std::string kind, std::string target, int number);

  bool over() const { return tally_->over; }
  void Note(const std::string& answer) { tally_->Note(kind_, answer); }
  void Note(const absl::Status& status);

  const std::string& target() const { return target_; }
  // Uses this thread's own connection, and a principal that all kinds share.
  Client& client() { return *client_; }
  v1::GdnService::Stub& stub() { return *stub_; }
  // Adds that principal's metadata to a call of the stub.
  void Sign(grpc::ClientContext& context) const;
  // Returns a client with a new principal, on the same connection.
  std::unique_ptr<Client> Invented();
  // Returns a session id that no other thread uses.
  std::string NewId();
  // Repeats `send` until it succeeds, because other threads of this client may use up the resources.
  void Insist(absl::FunctionRef<absl::Status()> send);
  // Makes a session and returns its id.
  std::string Made(const StepFeed& feed);

  const StepFeed& small() const { return small_; }
  const StepFeed& large() const { return large_; }  // 1 MiB of state, 4 KiB of output for each token
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
  std::set<std::string> refusals;  // one of these answers must occur; empty: the calls are valid, and "OK" must occur
  void (*run)(HostileCaller& me) = nullptr;  // runs until me.over()
};

// Invalid requests.
std::vector<HostileKind> BadRequests();
// Requests that use up memory that others need, or keep the server busy.
std::vector<HostileKind> GreedyRequests();
// Requests that use up other resources: descriptors, and a store that hangs.
std::vector<HostileKind> ExhaustingRequests();
// Connections that the server must allow the hostile client's address, for ExhaustingRequests.
inline constexpr int kMostHostileConnections = 300;
// Name of the kind that needs a server with a Redis.
inline constexpr const char* kSleepingStore = "sleeping store";

struct HostileResult {
  HostileAnswers answers;
  std::string missing;  // kinds that did not get a required answer; "": none
};

// Runs all kinds for at least `time`, then until each has had a required answer, but at most for `patience`. `only`:
// names of the kinds to run; empty: all. `without`: the name of a kind to leave out.
HostileResult RunHostile(const std::string& target, absl::Duration time, absl::Duration patience,
                         const std::vector<std::string>& only = {}, const std::string& without = "");

}  // namespace gdn
