// A tier whose limit and failures a test sets, and images that only have a version number.
//
// Thread safety: safe from any thread. Ownership: shares the images.
//
//   FakeTier disk("disk", /*durable=*/true, /*limit_bytes=*/300);
//   disk.FailStores(Unavailable("disk"));
//   EXPECT_EQ(VersionOf(*disk.Load(key)), 3);
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "state_store/tiers/state_tier.h"

namespace gdn {

// Makes an image of this version, with bytes() == `bytes`.
SessionImagePtr MakeVersion(int64_t version, int64_t bytes = 100);
int64_t VersionOf(const SessionImagePtr& image);
StateKey Key(std::string id, std::string checkpoint = "");
absl::Status Unavailable(std::string tier);

class FakeTier final : public StateTier {
 public:
  FakeTier(std::string name, bool durable, int64_t limit_bytes)
      : name_(std::move(name)), durable_(durable), limit_bytes_(limit_bytes) {}

  std::string_view name() const override { return name_; }
  bool durable() const override { return durable_; }
  absl::StatusOr<StoreResult> Store(const StateKey& key, const SessionImagePtr& image) override;
  absl::StatusOr<SessionImagePtr> Load(const StateKey& key) override;
  absl::Status Erase(const StateKey& key, bool all) override;
  absl::StatusOr<std::vector<StoredSession>> List() override;
  // UNIMPLEMENTED unless KeepsNotes(true) was called.
  absl::Status SetErasureNote(const StateKey& session, const std::set<std::string>& tiers) override;
  absl::StatusOr<std::map<StateKey, std::set<std::string>>> ErasureNotes() override;
  absl::StatusOr<StoredSession> Describe(const StateKey& key) override;
  TierUsage usage() const override;

  // Make calls return this status and do nothing, from now on; OK: they work again.
  void FailStores(const absl::Status& status) { Set(store_status_, status); }
  void FailLoads(const absl::Status& status) { Set(load_status_, status); }
  void FailErasures(const absl::Status& status) { Set(erase_status_, status); }
  void FailAll(const absl::Status& status);
  // Makes only Stores of this key return this status.
  void FailStoresOf(const StateKey& key, const absl::Status& status);
  // Makes a Load of this key return DATA_LOSS.
  void Damage(const StateKey& key);
  void KeepsNotes(bool keeps) { Set(keeps_notes_, keeps); }
  // Sets a function that is called at the start of each Store, without a lock.
  void OnStore(std::function<void(const StateKey&)> hook) { Set(on_store_, std::move(hook)); }
  // Sets a function that is called at the start of each Load, without a lock.
  void OnLoad(std::function<void(const StateKey&)> hook) { Set(on_load_, std::move(hook)); }

  std::map<StateKey, int64_t> versions() const;
  int64_t store_calls() const { return Get(store_calls_); }
  // True if two calls for one session have ever run at the same time.
  bool overlapped() const { return Get(overlapped_); }

 private:
  class Call;

  template <typename T>
  void Set(T& field, T value) {
    absl::MutexLock lock(&mu_);
    field = std::move(value);
  }
  template <typename T>
  T Get(const T& field) const {
    absl::MutexLock lock(&mu_);
    return field;
  }

  const std::string name_;
  const bool durable_;
  const int64_t limit_bytes_;
  mutable absl::Mutex mu_;
  std::map<StateKey, SessionImagePtr> images_;
  std::set<StateKey> damaged_;
  std::map<StateKey, absl::Status> refused_;
  bool keeps_notes_ = false;
  std::map<StateKey, std::set<std::string>> notes_;
  std::set<std::pair<std::string, std::string>> running_;  // principal, id
  int64_t used_bytes_ = 0;
  int64_t store_calls_ = 0;
  bool overlapped_ = false;
  absl::Status store_status_, load_status_, erase_status_;
  std::function<void(const StateKey&)> on_store_, on_load_;
};

// Holds a tier's next Store (of `key`, or of any key) at its start until Release or destruction. There must be no
// second Store in that time.
class HeldStore {
 public:
  explicit HeldStore(FakeTier& tier, std::optional<StateKey> key = std::nullopt);
  ~HeldStore() { Release(); }
  HeldStore(const HeldStore&) = delete;
  HeldStore& operator=(const HeldStore&) = delete;

  // Returns when the Store has begun.
  void Await() { events_->begun.WaitForNotification(); }
  void Release();

 private:
  struct Events {
    absl::Notification begun, released;
  };

  FakeTier& tier_;
  const std::shared_ptr<Events> events_ = std::make_shared<Events>();  // shared with the Store, which may end later
};

}  // namespace gdn
