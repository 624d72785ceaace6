// Everything that may happen to a session, to the same few of them from several threads. GDN_RACE_ROUNDS says how
// often.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/synchronization/notification.h"
#include "tests/server/session/tiered_world.h"
#include "tests/support/random.h"

namespace gdn::session_race_test {
namespace {

constexpr int kThreads = 4;
constexpr int kIds = 6;
constexpr int kLayers = 2;

int Rounds() {
  const char* text = std::getenv("GDN_RACE_ROUNDS");
  return text == nullptr ? 2000 : std::atoi(text);
}

// Ends the process where nothing has moved for minutes: a deadlock, which no machine is slow enough to look like.
class Watchdog {
 public:
  explicit Watchdog(const std::atomic<int64_t>& progress)
      : thread_([this, &progress] {
          int64_t seen = progress;
          while (!stop_.WaitForNotificationWithTimeout(absl::Minutes(4))) {
            if (progress == seen) {
              std::fprintf(stderr, "no round has ended for minutes: deadlock after round %lld\n",
                           static_cast<long long>(seen));
              std::abort();
            }
            seen = progress;
          }
        }) {}
  ~Watchdog() {
    stop_.Notify();
    thread_.join();
  }

 private:
  absl::Notification stop_;
  std::thread thread_;
};

// The expected contents of each layer of each session. The holder of a layer's lease sets them before it commits.
class Expectations {
 public:
  using Layers = std::array<Contents, kLayers>;

  void Set(const Session& session, const Layers& layers) {
    absl::MutexLock lock(&mu_);
    expected_[&session] = layers;
  }
  Layers Of(const Session& session) const {
    absl::MutexLock lock(&mu_);
    return expected_.at(&session);
  }
  void SetLayer(const Session& session, int32_t layer, const Contents& contents) {
    absl::MutexLock lock(&mu_);
    expected_.at(&session)[static_cast<size_t>(layer)] = contents;
  }

 private:
  mutable absl::Mutex mu_;
  std::unordered_map<const Session*, Layers> expected_ ABSL_GUARDED_BY(mu_);
};

class Racer {
 public:
  Racer(TieredWorld& world, Expectations& expectations, std::atomic<int64_t>& progress, uint64_t seed)
      : world_(world), expectations_(expectations), progress_(progress), random_(seed) {}

  void Race(int rounds) {
    for (int round = 0; round < rounds && !::testing::Test::HasFailure(); ++round) {
      const std::string id = std::to_string(random_.NextInt(0, kIds - 1));
      switch (random_.NextInt(0, 19)) {
        case 0:
        case 1:
        case 2:
        case 3:
          Create(id);
          break;
        case 4:
          Delete(id);
          break;
        case 5:
          world_.manager.DeleteExpired(SteadyNow() + absl::Hours(2));
          break;
        case 6:
        case 7:
          PushOut();
          break;
        case 8:
          Fork(id);
          break;
        case 9:
          Checkpoint(id, /*wait=*/true);
          break;
        case 10:
          Checkpoint(id, /*wait=*/false);
          break;
        case 11:
          Cancel(id);
          break;
        case 12:
          Accept(id);
          break;
        case 13:
          Two(id);
          break;
        default:
          Step(id);
          break;
      }
      progress_.fetch_add(1);
    }
  }

 private:
  // Sessions are ended by others at any time, and steps of others may be in the way; nothing else may go wrong.
  static void ExpectCommon(const absl::Status& status) {
    EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsAborted(status)) << status;
  }

  std::shared_ptr<Session> Find(const std::string& id) {
    auto session = world_.manager.Find("", id);
    return session.ok() ? *std::move(session) : nullptr;
  }

  SessionInit Init(const std::string& id) {
    SessionInit init = world_.Init(id);
    if (random_.NextInt(0, 2) == 0) init.idle_ttl = absl::Hours(1);  // DeleteExpired is told that two have passed
    return init;
  }

  // Checks the state, and that one which was not ended is not lost.
  SessionPin Checked(const std::shared_ptr<Session>& session, absl::StatusOr<SessionPin> pin) {
    if (!pin.ok()) {
      EXPECT_FALSE(absl::IsNotFound(pin.status()) && session->CheckAlive().ok()) << "lost: " << pin.status();
      EXPECT_TRUE(absl::IsNotFound(pin.status()) || absl::IsResourceExhausted(pin.status())) << pin.status();
      return SessionPin();
    }
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      const auto admission = session->Admit(pin->Another(), PlainStep(layer), nullptr);
      if (admission.ok()) ExpectContents(admission->lease);
    }
    return *std::move(pin);
  }
  SessionPin Pin(const std::shared_ptr<Session>& session) { return Checked(session, world_.PinOne(session)); }

  void ExpectContents(const StepLease& lease) {
    const Contents expected = expectations_.Of(lease.session())[static_cast<size_t>(lease.layer())];
    const Contents found = ReadContents(lease);
    EXPECT_EQ(found.base, expected.base) << "sessions/" << lease.session().id() << " layer " << lease.layer();
    EXPECT_EQ(found.tail, expected.tail) << "sessions/" << lease.session().id() << " layer " << lease.layer();
  }

  Contents Next(const Contents& before, bool fold) {
    const auto value = [this] { return static_cast<float>(random_.NextInt(1, 1 << 24)); };
    return {.base = fold ? value() : before.base, .tail = value()};
  }

  void Advance(StepLease lease) {
    ExpectContents(lease);
    const bool fold = random_.NextInt(0, 3) == 0;
    const Contents to = Next(expectations_.Of(lease.session())[static_cast<size_t>(lease.layer())], fold);
    expectations_.SetLayer(lease.session(), lease.layer(), to);
    const absl::Status status = Decode(std::move(lease), to, fold);
    EXPECT_TRUE(status.ok()) << status;
  }

  void AdvanceAside(StepLease lease) {
    ExpectContents(lease);
    const auto slot = lease.PrepareAside();
    if (!slot.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(slot.status())) << slot.status();
      return;
    }
    const Contents to = Next({}, /*fold=*/true);
    const StatePoolView pool = lease.pool()->view();
    FillBase(pool, *slot, to.base);
    FillTail(pool, *slot, to.tail);
    expectations_.SetLayer(lease.session(), lease.layer(), to);
    const int64_t tokens = lease.before().token_count + 3;
    lease.Commit({.after = {.token_count = tokens}, .base_written = true}, nullptr);
  }

  void Step(const std::string& id) {
    const auto session = Find(id);
    if (session == nullptr) return;
    const SessionPin pin = Pin(session);
    if (!pin.valid()) return;
    auto admission = session->Admit(pin.Another(), PlainStep(random_.NextInt(0, kLayers - 1)), nullptr);
    if (!admission.ok()) {
      EXPECT_TRUE(absl::IsAborted(admission.status()) || ErrorReason(admission.status()) == reason::kDraftPending)
          << admission.status();
      return;
    }
    random_.NextInt(0, 3) == 0 ? AdvanceAside(std::move(admission->lease)) : Advance(std::move(admission->lease));
  }

  // A call of two sessions.
  void Two(const std::string& id) {
    const auto a = Find(id);
    const auto b = Find(std::to_string((std::atoi(id.c_str()) + 1) % kIds));
    if (a == nullptr || b == nullptr) return;
    Residency::PinResults pins = world_.Pin({a, b});
    const SessionPin first = Checked(a, std::move(pins[0]));
    const SessionPin second = Checked(b, std::move(pins[1]));
  }

  void Cancel(const std::string& id) {
    const auto session = Find(id);
    if (session == nullptr) return;
    const SessionPin pin = Pin(session);
    if (!pin.valid()) return;
    StepRequest request = PlainStep(random_.NextInt(0, kLayers - 1));
    request.request_id = "r";
    Arrivals ended;
    JoinedCall joined;
    joined.ended = &ended;
    ended.Begin();
    auto admission = session->Admit(pin.Another(), request, &joined);
    if (admission.ok() && admission->joined) {
      EXPECT_TRUE(BlockOn(world_.executor, EndOf(ended)).ok());
      EXPECT_TRUE(absl::IsAborted(joined.reply.status())) << joined.reply.status();
    }
    if (!admission.ok() || !admission->lease.valid()) return;
    const int how = random_.NextInt(0, 2);
    if (how == 1) (void)admission->lease.PrepareDecode();
    if (how == 2) (void)admission->lease.PrepareAside();
    if (random_.NextInt(0, 1) == 0) (void)admission->lease.TryCancel();
  }

  void Accept(const std::string& id) {
    const auto session = Find(id);
    if (session == nullptr) return;
    const SessionPin pin = Pin(session);
    if (!pin.valid()) return;
    for (int32_t layer = 0; layer < kLayers; ++layer) {
      auto draft = session->Admit(pin.Another(), PlainStep(layer), nullptr);
      if (!draft.ok()) continue;
      const Contents to = Next(expectations_.Of(*session)[static_cast<size_t>(layer)], /*fold=*/false);
      const LayerProgress before = draft->lease.before();
      const auto slots = draft->lease.PrepareDecode();
      if (!slots.ok()) {
        ADD_FAILURE() << slots.status();
        return;
      }
      const StatePoolView pool = draft->lease.pool()->view();
      FillTail(pool, slots->slot, to.tail);
      if (slots->zero) FillBase(pool, slots->slot, 0.0f);
      expectations_.SetLayer(*session, layer, to);
      draft->lease.Commit({.after = {before.token_count, before.log_length, 2}, .base_written = slots->zero}, nullptr);
    }
    if (random_.NextInt(0, 3) == 0) return;  // left for whoever comes next
    const Acceptance request{.accepted_tokens = random_.NextInt(0, 2)};
    auto leases = session->AdmitAccept(pin, request);
    if (!leases.ok()) {
      EXPECT_TRUE(absl::IsAborted(leases.status()) || ErrorReason(leases.status()) == reason::kTooManyTokens)
          << leases.status();
      return;
    }
    for (StepLease& lease : *leases) {
      if (random_.NextInt(0, 7) == 0) continue;  // fails: the draft stays
      Advance(std::move(lease));
    }
    session->NoteAccepted(request);
  }

  void Create(const std::string& id) {
    auto creation = world_.manager.Begin(Init(id));
    if (!creation.ok()) {
      EXPECT_TRUE(absl::IsAborted(creation.status()) || absl::IsAlreadyExists(creation.status())) << creation.status();
      return;
    }
    if (!creation->pending()) return;
    expectations_.Set(*creation->session(), {});
    auto placed = world_.Place(std::move(creation->lease()), std::make_shared<SessionImage>());
    if (!placed.ok()) {
      EXPECT_TRUE(absl::IsResourceExhausted(placed.status())) << placed.status();
    } else if (random_.NextInt(0, 7) > 0) {
      creation->Publish();
    } else {
      placed->MarkDeleted();  // given up
    }
  }

  void Delete(const std::string& id) { ExpectCommon(world_.Delete(id)); }

  // Others have to make room for claims that are given up again.
  void PushOut() {
    const auto count = static_cast<int32_t>(kLayers * random_.NextInt(1, 3));
    const auto claims = world_.Reserve({.dims = world_.spec.dims, .count = count}, world_.ledger.AccountOf("", ""));
    const absl::Status& status = claims.status();
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  }

  void Fork(const std::string& id) {
    const auto parent = Find(id);
    if (parent == nullptr) return;
    auto creation = world_.manager.Begin(Init(std::to_string(random_.NextInt(0, kIds - 1))));
    if (!creation.ok() || !creation->pending()) return;
    auto locked = world_.LockResident(parent);
    if (!locked.ok()) {
      const absl::Status& status = locked.status();
      EXPECT_TRUE(absl::IsNotFound(status) || absl::IsResourceExhausted(status)) << status;
      EXPECT_FALSE(absl::IsNotFound(status) && parent->CheckAlive().ok()) << "lost: " << status;
      return;
    }
    SessionLease lease = *std::move(locked);
    const int32_t own = lease.claims_to_share();
    auto reserved =
        world_.Reserve({.dims = world_.spec.dims, .pool = lease.pool(), .count = own + kLayers}, parent->account());
    if (!reserved.ok()) return;
    std::vector<SlotClaim> claims = std::move(reserved->slots);
    std::vector<SlotClaim> for_parent;
    for (int32_t i = 0; i < own; ++i) {
      for_parent.push_back(std::move(claims.back()));
      claims.pop_back();
    }
    SessionInit init = Init(creation->session()->id());
    auto child = lease.Fork(std::move(init), std::move(claims), std::move(for_parent));
    expectations_.Set(*child, expectations_.Of(*parent));
    world_.room.Track(child);
    creation->Replace(std::move(child));
    creation->Publish();
  }

  void Checkpoint(const std::string& id, bool wait) {
    const auto session = Find(id);
    if (session == nullptr) return;
    if (wait) {
      const absl::Status status = world_.Checkpoint(session).status();
      EXPECT_FALSE(absl::IsNotFound(status) && session->CheckAlive().ok()) << "lost: " << status;
      return ExpectCommon(status);
    }
    world_.flows.Spawn(world_.checkpointer.Checkpoint(session, random_.NextInt(0, 1) == 0 ? "" : "named"),
                       [](const absl::StatusOr<CheckpointResult>& made) { ExpectCommon(made.status()); });
  }

  TieredWorld& world_;
  Expectations& expectations_;
  std::atomic<int64_t>& progress_;
  Random random_;
};

TEST(SessionRace, NoStateIsLostLeakedOrSharedByMistake) {
  TieredWorld world({.layers = kLayers,
                     .device_sessions = 5,
                     .host_bytes = 2 * kLayers * SessionWorld::SlotBytes(OperatorSessionSpec()),
                     .disk = true,
                     .policy = {.every_tokens = 16}});
  Expectations expectations;
  std::atomic<int64_t> progress{0};
  const Watchdog watchdog(progress);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back(
        [&, i] { Racer(world, expectations, progress, static_cast<uint64_t>(i) + 1).Race(Rounds() / kThreads); });
  }
  for (std::thread& thread : threads) thread.join();
  std::printf("%lld rounds, %lld evictions, %lld returns, %lld checkpoints\n", static_cast<long long>(progress),
              static_cast<long long>(world.residency.counters().evictions),
              static_cast<long long>(world.residency.counters().returns),
              static_cast<long long>(world.checkpointer.made()));
  EXPECT_GT(world.residency.counters().evictions, 0);

  for (int id = 0; id < kIds; ++id) {
    absl::Status status;
    do {
      status = world.Delete(std::to_string(id));  // a checkpoint or an end that is under way comes first
    } while (absl::IsAborted(status));
    ++progress;
  }
  while (world.manager.size() > 0) absl::SleepFor(absl::Milliseconds(1));  // those that others were ending
  world.io.Drain();
  world.flows.Wait();
  EXPECT_EQ(world.store.used_bytes(), 0);
  EXPECT_EQ(world.environment.replies().bytes(), 0);
  EXPECT_EQ(world.host.usage().sessions, 0);
  EXPECT_EQ(world.disk.usage().sessions, 0);
  EXPECT_FALSE(world.disk.overlapped()) << "a tier is called for a session once at a time";
  EXPECT_EQ(world.checkpointer.failed(), 0);
}

}  // namespace
}  // namespace gdn::session_race_test
