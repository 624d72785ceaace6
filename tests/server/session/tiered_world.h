// Sessions with tiers below the device: the server's own parts, with a host tier, and a disk that a test can make fail.
//
// Thread safety: the helpers may be called from many threads, but not from flows; they wait for the answer. Ownership:
// owns all parts; sessions and pins must be destroyed first.
//
//   TieredWorld world({.device_sessions = 2});
//   auto session = world.Make("a");
//   world.Write(session, 7);
//   EXPECT_EQ(world.Read(session), 7);
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/task/deadline.h"
#include "base/task/inline_executor.h"
#include "base/task/task.h"
#include "base/task/task_group.h"
#include "base/task/thread_executor.h"
#include "server/health/device_health.h"
#include "server/session/durable/checkpointer.h"
#include "server/session/room/device_room.h"
#include "server/session/room/residency.h"
#include "server/session/room/state_copier.h"
#include "server/session/session_manager.h"
#include "state_store/tiers/host_tier.h"
#include "tests/server/session/session_test_support.h"
#include "tests/state_store/tiers/fake_tier.h"
#include "tests/support/advanced_clock.h"

namespace gdn {

struct TieredWorldOptions {
  int layers = 2;
  int64_t device_sessions = 2;  // number of sessions that fit on the device
  bool host = true;
  int64_t host_bytes = 0;  // 0: no limit
  bool disk = false;
  int64_t disk_bytes = 0;
  CheckpointPolicy policy = {};
  int64_t copy_sessions = 1000;  // number of sessions whose copies in transit fit in host memory
  // Limits of sessions over all accounts: in total, and on the disk.
  int64_t most_sessions = kManySessions;
  int64_t most_on_disk = kManySessions;

  static constexpr int64_t kManySessions = 1'000'000;
};

// Keeps the result of one task while the test goes on. It must outlive the task.
template <typename T>
class Answer {
 public:
  void Start(TaskGroup& flows, Task<T> task) {
    flows.Spawn(std::move(task), [this](T value) { Give(std::move(value)); });
  }
  void Give(T value) {
    absl::MutexLock lock(&mu_);
    value_ = std::make_unique<T>(std::move(value));
  }
  bool given() const {
    absl::MutexLock lock(&mu_);
    return value_ != nullptr;
  }
  T& Wait() {
    const auto given = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return value_ != nullptr; };
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(&given));
    return *value_;
  }

 private:
  // A Mutex and no Notification, because ThreadSanitizer does not see the order that a Notification gives (tests/tsan).
  mutable absl::Mutex mu_;
  std::unique_ptr<T> value_ ABSL_GUARDED_BY(mu_);
};

struct TieredWorld : SessionWorld {
  explicit TieredWorld(const TieredWorldOptions& options = {})
      : SessionWorld(options.device_sessions * options.layers * SlotBytes(OperatorSessionSpec()),
                     /*reply_bytes=*/int64_t{1} << 20,
                     options.copy_sessions * options.layers * SlotBytes(OperatorSessionSpec()),
                     options.most_sessions * options.layers * SlotBytes(OperatorSessionSpec()),
                     options.most_on_disk * options.layers * SlotBytes(OperatorSessionSpec())),
        spec(OperatorSessionSpec(options.layers)),
        host(options.host_bytes),
        disk("disk", /*durable=*/true, options.disk_bytes),
        tiers(Tiers(options), {.retry_after = absl::ZeroDuration(), .holders = &environment.holders()}),
        residency(Parts()),
        checkpointer(Parts(), options.policy),
        manager({.room = room, .tiers = tiers, .io = io, .executor = executor}, environment) {
    environment.on_progress = [this](const std::shared_ptr<Session>& session) { checkpointer.NoteProgress(session); };
  }

  StateParts Parts() {
    return {.tiers = tiers,
            .copier = copier,
            .room = room,
            .ledger = ledger,
            .executor = executor,
            .io = io,
            .memory_io = io,
            .transfers = transfers};
  }

  std::vector<StateTier*> Tiers(const TieredWorldOptions& options) {
    std::vector<StateTier*> chosen;
    if (options.host) chosen.push_back(&host);
    if (options.disk) chosen.push_back(&disk);
    return chosen;
  }

  int64_t SessionBytes() const { return SlotBytes(spec) * static_cast<int64_t>(spec.layers.size()); }

  std::string PlaceOf(const std::shared_ptr<Session>& session) const {
    return session->resident() ? "device" : tiers.PlaceOf(session->key());
  }

  SessionInit Init(const std::string& id) const {
    return {.id = id, .spec = spec, .affinity = id, .request = HashBytes("r")};
  }

  absl::StatusOr<SessionLease> Place(SessionLease lease, SessionImagePtr image) {
    return BlockOn(executor, residency.Place(std::move(lease), std::move(image), Deadline()));
  }
  absl::StatusOr<std::shared_ptr<Session>> TryMake(SessionInit init) {
    GDN_ASSIGN_OR_RETURN(SessionCreation creation, manager.Begin(std::move(init)));
    GDN_ASSIGN_OR_RETURN(const SessionLease placed,
                         Place(std::move(creation.lease()), std::make_shared<SessionImage>()));
    creation.Publish();
    return creation.session();
  }
  // Makes a session; if `mark` is not 0, its state has this mark (see Write).
  std::shared_ptr<Session> Make(const std::string& id, float mark = 0.0f) {
    auto session = TryMake(Init(id)).value();
    const absl::Status written = mark == 0.0f ? absl::OkStatus() : Write(session, mark);
    EXPECT_TRUE(written.ok()) << written;
    return session;
  }

  Residency::PinResults Pin(std::vector<std::shared_ptr<Session>> sessions, Deadline deadline = {}) {
    return BlockOn(executor, residency.Pin(std::move(sessions), std::move(deadline)));
  }
  absl::StatusOr<SessionPin> PinOne(const std::shared_ptr<Session>& session) { return std::move(Pin({session})[0]); }

  absl::StatusOr<SessionLease> LockResident(const std::shared_ptr<Session>& session, Deadline deadline = {}) {
    return BlockOn(executor, residency.LockResident(session, std::move(deadline)));
  }
  absl::StatusOr<RoomClaims> Reserve(RoomRequest request, const ByteAccountPtr& account, Deadline deadline = {}) {
    return BlockOn(executor, residency.Reserve(std::move(request), account, std::move(deadline)));
  }

  // Waits for room for a checkpoint, as a call of one token for `layer` does before it pins.
  absl::Status WaitForRoom(const std::shared_ptr<Session>& session, int32_t layer, Deadline deadline = {}) {
    return BlockOn(executor, checkpointer.WaitForRoom(session, layer, 1, std::move(deadline)));
  }

  // Steps every layer by one token, and sets the whole state to numbers made from `mark` and the layer (MarkOf).
  static absl::Status Write(const SessionPin& pin, float mark) {
    const std::vector<int32_t>& layers = pin.session().spec().layers;
    for (size_t i = 0; i < layers.size(); ++i) {
      GDN_ASSIGN_OR_RETURN(Admission admission, pin.session().Admit(pin.Another(), PlainStep(layers[i]), nullptr));
      GDN_RETURN_IF_ERROR(Decode(std::move(admission.lease), MarkOf(mark, i), /*fold=*/true));
    }
    return absl::OkStatus();
  }
  absl::Status Write(const std::shared_ptr<Session>& session, float mark) {
    for (const int32_t layer : session->spec().layers) GDN_RETURN_IF_ERROR(WaitForRoom(session, layer));
    GDN_ASSIGN_OR_RETURN(const SessionPin pin, PinOne(session));
    return Write(pin, mark);
  }
  static Contents MarkOf(float mark, size_t layer) {
    return {.base = mark + static_cast<float>(layer) / 8, .tail = -mark - static_cast<float>(layer) / 8};
  }
  // Returns the mark, or an error if the state is not that of a single Write.
  static absl::StatusOr<float> Read(const SessionPin& pin) {
    const std::vector<int32_t>& layers = pin.session().spec().layers;
    float mark = 0.0f;
    for (size_t i = 0; i < layers.size(); ++i) {
      GDN_ASSIGN_OR_RETURN(const Admission admission,
                           pin.session().Admit(pin.Another(), PlainStep(layers[i]), nullptr));
      const Contents contents = ReadContents(admission.lease);
      if (i == 0) mark = contents.base;
      const Contents expected = mark == 0.0f ? Contents() : MarkOf(mark, i);
      if (!(contents == expected)) return absl::InternalError("the state is not of one step");
    }
    return mark;
  }
  absl::StatusOr<float> Read(const std::shared_ptr<Session>& session) {
    GDN_ASSIGN_OR_RETURN(const SessionPin pin, PinOne(session));
    return Read(pin);
  }

  absl::Status Delete(const std::string& id) { return BlockOn(executor, manager.Delete("", id)); }
  absl::StatusOr<CheckpointResult> Checkpoint(const std::shared_ptr<Session>& session, const std::string& id = "",
                                              Deadline deadline = {}) {
    return BlockOn(executor, checkpointer.Checkpoint(session, id, std::move(deadline)));
  }
  absl::Status Restore(const std::shared_ptr<Session>& session, const std::string& id = "", Deadline deadline = {}) {
    return BlockOn(executor, checkpointer.Restore(session, id, std::move(deadline)));
  }
  absl::StatusOr<CapturedState> Capture(const std::shared_ptr<Session>& session, Deadline deadline = {}) {
    return BlockOn(executor, checkpointer.Capture(session, nullptr, std::move(deadline)));
  }
  absl::Status DeleteCheckpoint(const std::shared_ptr<Session>& session, const std::string& id) {
    return BlockOn(executor, checkpointer.Delete(session, id));
  }

  const SessionSpec spec;
  ThreadExecutor executor{{}};
  AdvancedClock clock;
  DeviceHealth health;
  HostBlockPool memory{*backend, /*keep_bytes=*/0};
  HostTier host;
  FakeTier disk;
  TierStack tiers;
  StateCopier copier{{.devices = {{*backend, health}}, .memory = memory}};
  DeviceRoom room{{.stores = {&store}, .tiers = tiers, .copier = copier, .ledger = ledger, .clock = clock}};
  TaskQueue io{{.name = "gdn-state-io", .threads = 2}};
  TaskQueue transfers{{.name = "gdn-transfer", .threads = 2}};
  Residency residency;
  Checkpointer checkpointer;
  SessionManager manager;
  // For calls that are under way while the test goes on. A task runs inside Spawn until it waits, so calls come in the
  // test's order.
  InlineExecutor at_once{executor};
  TaskGroup flows{at_once};  // last: its tasks use all of the above
};

}  // namespace gdn
