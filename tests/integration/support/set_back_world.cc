#include "tests/integration/support/set_back_world.h"

#include <filesystem>
#include <utility>

namespace gdn {
namespace {

namespace fs = std::filesystem;

constexpr char kAgain[] = "again";
constexpr char kTwin[] = "twin";
// A session's tokens begin here in the feed; one that is made anew has others.
constexpr int64_t kApart = 20;
constexpr int64_t kSecondLife = 200;

}  // namespace

SetBackWorld::SetBackWorld(SetBackTiers tiers) : tiers_(tiers) {
  if (tiers_.redis) redis_.Start();
}

const std::vector<std::string>& SetBackWorld::Copies() {
  static const std::vector<std::string> copies = {"1 early", "1 late", "1 stopped", "2", "2 stopped"};
  return copies;
}

GdnServerOptions SetBackWorld::Options() const {
  GdnServerOptions options;
  if (tiers_.disk) options.states.disk.directory = Disk();
  if (tiers_.redis) options.states.redis.endpoint = redis_.endpoint();
  return options;
}

void SetBackWorld::Copy(const std::string& name) const {
  fs::create_directories(Folder(name));
  if (tiers_.disk) fs::copy(Disk(), Folder(name) + "/disk", fs::copy_options::recursive);
  if (tiers_.redis) redis_.CopyDataTo(Folder(name));
}

void SetBackWorld::PutBack(const Moments& moments) {
  if (tiers_.disk && !moments.disk.empty()) {
    fs::remove_all(Disk());
    fs::copy(Folder(moments.disk) + "/disk", Disk(), fs::copy_options::recursive);
  }
  if (tiers_.redis && !moments.redis.empty()) redis_.RestartWith(Folder(moments.redis));
}

std::string SetBackWorld::Expected(int64_t offset, int64_t token) {
  std::vector<std::string>& outputs = outputs_[offset];
  const std::string id = "steady" + std::to_string(offset);
  if (outputs.empty()) {
    EXPECT_TRUE(feed_.Create(steady_, id).ok());
  }
  while (static_cast<int64_t>(outputs.size()) <= token) {
    const auto next = static_cast<int64_t>(outputs.size());
    outputs.push_back(feed_.DecodeAll(steady_, id, {offset + next, 1}));
  }
  return outputs[static_cast<size_t>(token)];
}

void SetBackWorld::Make(const Caller& caller, const std::string& id, int64_t offset) {
  ASSERT_TRUE(feed_.Create(caller, id).ok());
  known_[id] = {.offset = offset};
}

void SetBackWorld::Step(const Caller& caller, int steps) {
  for (auto& [id, known] : known_) {
    for (int i = 0; i < steps; ++i, ++known.tokens) {
      ASSERT_EQ(feed_.DecodeAll(caller, id, {known.offset + known.tokens, 1}), Expected(known.offset, known.tokens))
          << id;
    }
  }
}

void SetBackWorld::Place(const Caller& caller) const {
  for (const auto& [id, known] : known_) {
    if (id == "device") {
      EXPECT_TRUE(caller.Checkpoint(id).ok());
      continue;
    }
    const bool to_redis = !tiers_.disk || (tiers_.redis && id != "disk");
    const auto placed = caller.Evict(id, to_redis ? v1::STATE_TIER_REDIS : v1::STATE_TIER_DISK);
    EXPECT_TRUE(placed.ok()) << placed.status.error_message();
  }
}

void SetBackWorld::Meet(const Caller& caller) {
  for (auto& [id, known] : known_) {
    ASSERT_REPLY(const auto session, caller.Get(id));
    EXPECT_EQ(session.layers(0).token_count(), known.tokens) << id;
    known.epoch = session.epoch();
  }
}

void SetBackWorld::FirstRun() {
  TestServer server(Options());
  const Caller caller(server);
  int64_t offset = 0;
  for (const std::string id : {"disk", "redis", "device", kAgain, kTwin}) {
    Make(caller, id, offset);
    offset += kApart;
  }
  Step(caller, 2);
  Place(caller);
  Copy("1 early");
  Step(caller, 1);
  Place(caller);
  Copy("1 late");
  EXPECT_TRUE(server.Drain());
}

void SetBackWorld::SecondRun() {
  TestServer server(Options());
  const Caller caller(server);
  Meet(caller);
  Step(caller, 1);
  for (const std::string id : {kAgain, kTwin}) {
    ASSERT_TRUE(caller.Delete(id).ok());
    Make(caller, id, known_[id].offset + kSecondLife);
  }
  Step(caller, 1);
  Place(caller);
  Copy("2");
  EXPECT_TRUE(server.Drain());
}

void SetBackWorld::ThirdRun(const Caller& caller) {
  Meet(caller);
  Step(caller, 2);  // "twin" has as many tokens, and commits, as the one before it had in "1 late"
  Place(caller);
}

void SetBackWorld::RunAgain(const Caller& caller) {
  for (auto& [id, known] : known_) known.tokens = at_the_end_[id].tokens - 3;
  ThirdRun(caller);
}

void SetBackWorld::Record() {
  FirstRun();
  Copy("1 stopped");
  SecondRun();
  Copy("2 stopped");
  {
    TestServer server(Options());
    const Caller caller(server);
    ThirdRun(caller);
    Step(caller, 1);  // which a kill loses
    Copy("killed");
    EXPECT_TRUE(server.Drain());
  }
  Copy("stopped");
  at_the_end_ = known_;
}

SetBackWorld::Seen SetBackWorld::StepAll(const Caller& caller, bool with_counts) {
  Seen seen;
  for (auto& [id, known] : known_) {
    v1::DecodeRequest request = feed_.Decode({id}, TokenRange{known.offset + known.tokens, 1});
    request.add_session_epochs(known.epoch);
    if (with_counts) request.add_expected_token_counts(known.tokens);
    Outcome<v1::DecodeResponse> reply;
    const auto reached = [&] {
      reply = caller.Decode(request);
      return reply.reason() != "TIER_UNAVAILABLE";
    };
    EXPECT_TRUE(WaitUntil(reached, "the tiers to answer"));
    ++(reply.ok() ? seen.answered : seen.refused);
    if (reply.ok()) {
      EXPECT_TRUE(reply.reply.output().data() == Expected(known.offset, known.tokens))
          << id << ": an older state in epoch " << known.epoch << ", where " << known.tokens
          << " tokens were answered; it now has " << reply.reply.token_counts(0);
      ++known.tokens;
    } else {
      EXPECT_NE(reply.reason(), "") << id << ": " << reply.status.error_message();
      ++seen.reasons[reply.reason()];
    }
  }
  return seen;
}

}  // namespace gdn
