// Requests that use up what is not memory of the server's own: descriptors, a store that hangs, and small messages that
// stand for much.
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "base/string_cat.h"
#include "tests/integration/support/raw_http2.h"
#include "tests/soak/hostile.h"

namespace gdn {
namespace {

// More connections at once than one address may have, again and again. Those over the limit are closed at once; between
// the storms the other kinds' connections come through.
void DescriptorStorm(HostileCaller& me) {
  constexpr int kConnections = 2 * kMostHostileConnections;
  while (!me.over()) {
    std::vector<std::unique_ptr<RawHttp2>> storm;
    for (int i = 0; i < kConnections && !me.over(); ++i) storm.push_back(std::make_unique<RawHttp2>(me.target()));
    absl::SleepFor(absl::Milliseconds(50));
    for (const auto& connection : storm) {
      // The server greets first; one that was turned away has only its end to read.
      me.Note(!connection->Readable(0) ? "silent" : connection->Read().has_value() ? "open" : "turned away");
    }
    storm.clear();
    absl::SleepFor(absl::Seconds(1));
  }
}

// Small messages with much in them, or that ask for much.
void EmptyParts(HostileCaller& me) {
  v1::CreateSessionRequest states = me.small().Creation(me.NewId());
  for (int i = 0; i < 1000; ++i) states.add_initial_states();
  v1::CreateSessionRequest vast = me.small().Creation(me.NewId());
  vast.mutable_operator_()->set_key_dim(1 << 14);
  vast.mutable_operator_()->set_value_dim(1 << 14);
  vast.add_initial_states();
  v1::ForkSessionRequest children;
  children.set_name("sessions/none");
  for (int i = 0; i < 100'000; ++i) children.add_session_ids("");
  const std::vector<std::string> names(100'000);
  while (!me.over()) {
    me.Note(me.client().CreateSession(states).status());
    me.Note(me.client().CreateSession(vast).status());
    me.Note(me.client().ForkSession(children).status());
    me.Note(me.client().PrefetchSessions(names).status());
  }
}

// Sessions that are sent to a Redis that stands still every few seconds, and are stepped there.
void SleepingStore(HostileCaller& me) {
  constexpr int kSessions = 4;
  std::vector<std::string> ids;
  for (int i = 0; i < kSessions; ++i) ids.push_back(me.NewId());
  for (int64_t i = 0; !me.over(); ++i) {
    const std::string& id = ids[static_cast<size_t>(i % kSessions)];
    v1::EvictSessionRequest evict;
    evict.set_name(StrCat("sessions/", id));
    evict.set_tier(v1::STATE_TIER_REDIS);
    const absl::Status sent = me.client().EvictSession(evict).status();
    me.Note(sent);
    if (absl::IsNotFound(sent)) me.Note(me.client().CreateSession(me.small().Creation(id)).status());
    v1::DecodeRequest step =
        me.small().Decode({FeedRow{.session = StrCat("sessions/", id), .stream = 0, .token = 0}}, 0);
    step.clear_expected_token_counts();
    me.Note(me.client().Decode(step).status());
  }
}

}  // namespace

std::vector<HostileKind> ExhaustingRequests() {
  return {{"descriptor storm", 1, {"turned away"}, DescriptorStorm},
          {"empty parts", 1, {"INVALID_SPEC", "BATCH_TOO_LARGE"}, EmptyParts},
          {kSleepingStore, 4, {"TIER_UNAVAILABLE"}, SleepingStore}};
}

}  // namespace gdn
