// Fixture for stores that are set back: a disk, a Redis or both, a client that remembers every reply, and copies of the
// stores from several moments. Any copy can be restored.
//
// Thread safety: for one thread. Ownership: owns the stores; the caller owns the servers.
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

#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn {

struct SetBackTiers {
  bool disk = false;
  bool redis = false;
};

class SetBackWorld {
 public:
  explicit SetBackWorld(SetBackTiers tiers);

  // Makes three runs of a server and the copies: "1 early", "1 late" and "2" while a server ran, "1 stopped" and
  // "2 stopped" after orderly ends, "killed" and "stopped" at the end of the third run. Run 2 recreates two sessions.
  void Record();
  static const std::vector<std::string>& Copies();  // all copies except "killed" and "stopped"

  // Names of copies; "" leaves a tier as it is.
  struct Moments {
    std::string disk = {};
    std::string redis = {};
  };
  void PutBack(const Moments& moments);
  // PutBack for Redis alone, while a server uses it.
  void SetRedisBack(const std::string& copy) { redis_.RestartWith(Folder(copy)); }
  // Repeats the third run on a server that was started from "2 stopped", and so the client's knowledge at its end.
  void RunAgain(const Caller& caller);

  GdnServerOptions Options() const;

  // Sends a step of every session with the epoch that the client knows. Each must be refused or have the right bits.
  // `with_counts`: the steps also have the token counts that the client knows.
  struct Seen {
    int answered = 0;
    int refused = 0;
    std::map<std::string, int> reasons;
  };
  Seen StepAll(const Caller& caller, bool with_counts = false);
  int sessions() const { return static_cast<int>(known_.size()); }
  // Makes the client forget "twin", which token counts do not tell from an earlier session of that name.
  void ForgetTwin() { known_.erase("twin"); }
  // Resets the client's knowledge to that at the end of the third run.
  void RememberTheEnd() { known_ = at_the_end_; }

 private:
  // A session as of the last reply to the client.
  struct Known {
    int64_t offset = 0;  // index of its first token in the feed
    int64_t epoch = 1;
    int64_t tokens = 0;
  };
  std::string Folder(const std::string& copy) const { return stores_.path() + "/" + copy; }
  std::string Disk() const { return stores_.path() + "/disk"; }
  void Copy(const std::string& name) const;
  void Make(const Caller& caller, const std::string& id, int64_t offset);
  void Step(const Caller& caller, int steps);
  // Moves each session to its tier. One stays on the device, with a checkpoint.
  void Place(const Caller& caller) const;
  // Updates the client after an orderly restart, which may begin new epochs but must not lose tokens.
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
  std::map<int64_t, std::vector<std::string>> outputs_;  // expected outputs of steady_server_, by offset
};

}  // namespace gdn
