// Requests that hold what others need, or keep the server busy.
#include <algorithm>
#include <deque>
#include <memory>

#include "absl/time/clock.h"
#include "base/string_cat.h"
#include "tests/integration/support/raw_http2.h"
#include "tests/soak/hostile.h"

namespace gdn {
namespace {

// Waits for so long, or until all is over.
void Hold(HostileCaller& me, absl::Duration time) {
  for (const absl::Time end = absl::Now() + time; !me.over() && absl::Now() < end;) {
    absl::SleepFor(absl::Milliseconds(10));
  }
}

// Exports and watches that nobody reads, of a session whose file no connection can hold on its way, and one more that
// is read.
void SlowReaders(HostileCaller& me) {
  constexpr int kReaders = 12;  // of each kind
  const StepFeed huge({.key_heads = 8, .value_heads = 32, .key_dim = 128, .value_dim = 128, .layers = 4});
  const std::string id = me.Made(huge);
  for (int layer = 0; layer < huge.options().layers; ++layer) {
    me.Insist([&] { return me.client().Prefill(huge.Prefill(SessionName(id), layer, 8)).status(); });
  }
  v1::ExportStateRequest exported;
  exported.set_name(SessionName(id));
  v1::WatchStateRequest watched;
  watched.set_name(SessionName(id));
  watched.set_every_tokens(1);
  while (!me.over()) {
    std::deque<grpc::ClientContext> contexts;
    std::vector<std::unique_ptr<grpc::ClientReader<v1::ExportStateResponse>>> exports;
    std::vector<std::unique_ptr<grpc::ClientReader<v1::WatchStateResponse>>> watches;
    for (int i = 0; i < kReaders; ++i) {
      me.Sign(contexts.emplace_back());
      exports.push_back(me.stub().ExportState(&contexts.back(), exported));
      me.Sign(contexts.emplace_back());
      watches.push_back(me.stub().WatchState(&contexts.back(), watched));
    }
    for (int i = 0; i < 5; ++i) {
      Hold(me, absl::Milliseconds(100));
      me.Note(me.client().ExportState(exported).status());
    }
    for (grpc::ClientContext& context : contexts) context.TryCancel();
    for (const auto& reader : exports) reader->Finish();
    for (const auto& reader : watches) reader->Finish();
  }
}

// Large replies with ids in many sessions: kept for retries that come late, or never.
void StoredReplies(HostileCaller& me) {
  constexpr int kSessions = 12;  // a few more than there is room for, so that a slow machine gets through a round too
  std::vector<v1::PrefillRequest> steps;
  for (int i = 0; i < kSessions; ++i) steps.push_back(me.large().Prefill(SessionName(me.Made(me.large())), 0, 250));
  for (int round = 0; !me.over(); ++round) {
    for (v1::PrefillRequest& step : steps) {
      if (me.over()) return;
      step.set_request_id(StrCat("r", round));
      me.Insist([&] { return me.client().Prefill(step).status(); });
    }
    for (const v1::PrefillRequest& step : steps) {
      if (me.over()) return;
      me.Note(me.client().Prefill(step).status());
    }
  }
}

// Checkpoints under ever other names.
void NamedCheckpoints(HostileCaller& me) {
  while (!me.over()) {
    const std::string id = me.Made(me.small());
    v1::CheckpointSessionRequest request;
    request.set_name(SessionName(id));
    for (int i = 0; i < 80 && !me.over(); ++i) {
      request.set_checkpoint_id(StrCat("c", i));
      me.Note(me.client().CheckpointSession(request).status());
    }
    me.client().DeleteSession(SessionName(id)).IgnoreError();
  }
}

// Prefills of 4 MiB back to back.
void Prefills(HostileCaller& me) {
  const v1::PrefillRequest prefill = me.large().Prefill(SessionName(me.Made(me.large())), 0, 500);
  while (!me.over()) me.Note(me.client().Prefill(prefill).status());
}

// Many more sessions than the device has room for, touched at random.
void Evictions(HostileCaller& me) {
  constexpr int kSessions = 600;
  std::vector<std::string> names;
  for (int i = 0; i < kSessions && !me.over(); ++i) names.push_back(SessionName(me.Made(me.small())));
  while (!me.over()) {
    std::vector<FeedRow> rows(8);
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto last = static_cast<int32_t>(names.size() - 1);
      std::swap(names[i], names[static_cast<size_t>(me.random().NextInt(static_cast<int32_t>(i), last))]);
      rows[i].session = names[i];
    }
    v1::DecodeRequest step = me.small().Decode(rows, 0);
    step.clear_expected_token_counts();
    me.Note(me.client().Decode(step).status());
  }
}

// Ever new principals: each makes a session, steps it, asks for one that is another's, and leaves.
void InventedPrincipals(HostileCaller& me) {
  const std::string another = SessionName(me.Made(me.small()));
  while (!me.over()) {
    const std::unique_ptr<Client> invented = me.Invented();
    const std::string id = me.NewId();
    me.Note(invented->CreateSession(me.small().Creation(id)).status());
    me.Note(invented->Prefill(me.small().Prefill(SessionName(id), 0, 128)).status());
    me.Note(invented->GetSession(another).status());
  }
}

// Many principals that have all been invented by one client, each with a prefill at any time.
void Crowd(HostileCaller& me) {
  const std::unique_ptr<Client> invented = me.Invented();
  const std::string id = me.NewId();
  me.Insist([&] { return invented->CreateSession(me.small().Creation(id)).status(); });
  const v1::PrefillRequest prefill = me.small().Prefill(SessionName(id), 0, 512);
  while (!me.over()) me.Note(invented->Prefill(prefill).status());
}

// Hundreds of connections: some do nothing, some begin a call, some send half a message, some ping without end.
void Connections(HostileCaller& me) {
  constexpr int kConnections = 240;
  const std::string half = MessagePrefix(1 << 20) + std::string(60'000, 'x');
  while (!me.over()) {
    std::vector<std::unique_ptr<RawHttp2>> connections;
    for (int i = 0; i < kConnections && !me.over(); ++i) {
      RawHttp2& connection = *connections.emplace_back(std::make_unique<RawHttp2>(me.target()));
      if (i % 4 >= 1) connection.StartCall(1, "/gdn.v1.GdnService/Decode");
      if (i % 4 >= 2) connection.SendData(1, half);
      for (int ping = 0; i % 4 == 3 && ping < 8; ++ping) connection.SendPing();
    }
    Hold(me, absl::Seconds(1));
    for (const auto& connection : connections) {
      std::string answer = "open";
      while (answer == "open" && connection->Readable(0)) {
        const auto frame = connection->Read();
        if (!frame.has_value()) answer = "closed";
        if (frame.has_value() && frame->type == Http2Frame::kGoAway) {
          answer = frame->error() == Http2Frame::kEnhanceYourCalm ? "ENHANCE_YOUR_CALM" : "GOAWAY";
        }
      }
      me.Note(answer);
    }
  }
}

}  // namespace

std::vector<HostileKind> GreedyRequests() {
  return {{"slow readers", 1, {"BYTES_EXHAUSTED (copy)"}, SlowReaders},
          {"stored replies", 1, {"REPLY_DROPPED"}, StoredReplies},
          {"named checkpoints", 1, {"TOO_MANY_CHECKPOINTS"}, NamedCheckpoints},
          {"prefills", 4, {}, Prefills},
          {"evictions", 2, {}, Evictions},
          {"invented principals", 4, {"SESSION_NOT_FOUND"}, InventedPrincipals},
          {"crowd", 16, {}, Crowd},
          {"connections", 1, {"ENHANCE_YOUR_CALM"}, Connections}};
}

}  // namespace gdn
