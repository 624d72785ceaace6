// A server over a disk, a Redis or both, a client that remembers what it was told, and copies of both stores from
// moments of that history. Any of the copies can be put back.
//
// Thread safety: for one thread. Ownership: owns the stores; the servers are the caller's.
//
//   SetBackWorld world({.disk = true, .redis = true});
//   world.Record();                                  // once
//   world.PutBack({.disk = "A", .redis = "final"});  // no server may use the stores
//   TestServer server(world.Options());
//   const SetBackWorld::Seen seen = world.StepAll(Caller(server));
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/integration/service_helpers.h"
#include "tests/integration/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn {

struct SetBackTiers {
  bool disk = false;
  bool redis = false;
};

class SetBackWorld {
 public:
  explicit SetBackWorld(SetBackTiers tiers);

  // Three runs of a server. Copies: "1 early", "1 late" and "2" while a server ran, "1 stopped" and "2 stopped" after
  // orderly ends, "killed" and "stopped" of the end of the third run. Two sessions are deleted and made anew in run 2.
  void Record();
  static const std::vector<std::string>& Copies();  // all but the last two

  // Names of copies; "" leaves a tier as it is.
  struct Moments {
    std::string disk = {};
    std::string redis = {};
  };
  void PutBack(const Moments& moments);
  // PutBack for Redis alone, while a server uses it.
  void SetRedisBack(const std::string& copy) { redis_.RestartWith(Folder(copy)); }
  // The third run, on a server that was started from "2 stopped": what the client knows is then as at the end of it.
  void RunAgain(const Caller& caller);

  GdnServerOptions Options() const;

  // A step of every session in the epoch that the client knows: answered with the right bits, or refused. Anything else
  // fails the test. `with_counts`: the steps say how many tokens the client knows of, too.
  struct Seen {
    int answered = 0;
    int refused = 0;
    std::map<std::string, int> reasons;
  };
  Seen StepAll(const Caller& caller, bool with_counts = false);
  int sessions() const { return static_cast<int>(known_.size()); }
  // The client forgets "twin", which no count tells from the session of its name before it.
  void ForgetTwin() { known_.erase("twin"); }
  // The client goes back to what it knew at the end of the third run.
  void RememberTheEnd() { known_ = at_the_end_; }

 private:
  // A session as the last answer to the client had it.
  struct Known {
    int64_t offset = 0;  // of its first token in the feed
    int64_t epoch = 1;
    int64_t tokens = 0;
  };
  std::string Folder(const std::string& copy) const { return stores_.path() + "/" + copy; }
  std::string Disk() const { return stores_.path() + "/disk"; }
  void Copy(const std::string& name) const;
  void Make(const Caller& caller, const std::string& id, int64_t offset);
  void Step(const Caller& caller, int steps);
  // Sends each session to where it rests, and one stays on the device, with a checkpoint.
  void Place(const Caller& caller) const;
  // An orderly end may begin new epochs, never lose tokens.
  void Meet(const Caller& caller);
  void FirstRun();
  void SecondRun();
  void ThirdRun(const Caller& caller);
  std::string Expected(int64_t offset, int64_t token);

  const SetBackTiers tiers_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  const TempFolder stores_;
  RedisServer redis_{{.append_only = true}};
  std::map<std::string, Known> known_;
  std::map<std::string, Known> at_the_end_;
  TestServer steady_server_;
  const Caller steady_{steady_server_};
  std::map<int64_t, std::vector<std::string>> outputs_;  // of the steady server, by offset
};

}  // namespace gdn
