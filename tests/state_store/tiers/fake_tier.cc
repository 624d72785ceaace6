#include "tests/state_store/tiers/fake_tier.h"

#include "base/error.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {

SessionImagePtr MakeVersion(int64_t version, int64_t bytes) {
  auto reply = std::make_shared<StoredReply>();
  reply->token_count = version;
  reply->output.assign(static_cast<size_t>(bytes), 'x');
  auto image = std::make_shared<SessionImage>();
  LayerImage& layer = image->layers.emplace_back();
  layer.extent.token_count = version;
  layer.reply = std::move(reply);
  return image;
}

int64_t VersionOf(const SessionImagePtr& image) { return image->layers.at(0).extent.token_count; }

StateKey Key(std::string id, std::string checkpoint) {
  return {.principal = "", .id = std::move(id), .checkpoint = std::move(checkpoint)};
}

absl::Status Unavailable(std::string tier) {
  return MakeError(absl::StatusCode::kUnavailable, reason::kTierUnavailable, StrCat(tier, " cannot be reached"),
                   {{"tier", tier}});
}

class FakeTier::Call {
 public:
  Call(FakeTier& tier, const StateKey& key) : tier_(tier), session_(key.principal, key.id) {
    absl::MutexLock lock(&tier_.mu_);
    if (!tier_.running_.insert(session_).second) tier_.overlapped_ = true;
  }
  ~Call() {
    absl::MutexLock lock(&tier_.mu_);
    tier_.running_.erase(session_);
  }

 private:
  FakeTier& tier_;
  const std::pair<std::string, std::string> session_;
};

absl::StatusOr<StoreResult> FakeTier::Store(const StateKey& key, const SessionImagePtr& image) {
  Call call(*this, key);
  if (const auto hook = Get(on_store_); hook) hook(key);
  absl::MutexLock lock(&mu_);
  ++store_calls_;
  if (!store_status_.ok()) return store_status_;
  if (const auto refused = refused_.find(key); refused != refused_.end()) return refused->second;
  const auto it = images_.find(key);
  const int64_t used = used_bytes_ + image->bytes() - (it == images_.end() ? 0 : it->second->bytes());
  if (limit_bytes_ > 0 && used > limit_bytes_) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kStateBudgetExhausted, StrCat(name_, " is full"));
  }
  used_bytes_ = used;
  images_[key] = image;
  return StoreResult{.written_bytes = image->bytes(), .held_bytes = image->bytes()};
}

absl::StatusOr<SessionImagePtr> FakeTier::Load(const StateKey& key) {
  Call call(*this, key);
  if (const auto hook = Get(on_load_); hook) hook(key);
  absl::MutexLock lock(&mu_);
  if (!load_status_.ok()) return load_status_;
  const auto it = images_.find(key);
  if (it == images_.end()) return absl::NotFoundError(key.ToString());
  if (damaged_.contains(key)) return absl::DataLossError(key.ToString());
  return it->second;
}

absl::Status FakeTier::Erase(const StateKey& key, bool all) {
  Call call(*this, key);
  absl::MutexLock lock(&mu_);
  if (!erase_status_.ok()) return erase_status_;
  const auto [begin, end] = all ? SessionRange(images_, key) : images_.equal_range(key);
  for (auto it = begin; it != end; ++it) used_bytes_ -= it->second->bytes();
  images_.erase(begin, end);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StoredSession>> FakeTier::List() {
  absl::MutexLock lock(&mu_);
  if (!load_status_.ok()) return load_status_;
  std::vector<StoredSession> sessions;
  for (const auto& [key, image] : images_) {
    StoredSession& session = sessions.emplace_back();
    session.key = key;
    session.header = image->header;
    session.bytes = image->bytes();
    for (const LayerImage& layer : image->layers) {
      session.layers.emplace_back(layer.layer, layer.extent);
      session.kinds.push_back(layer.kind);
    }
  }
  return sessions;
}

absl::Status FakeTier::SetErasureNote(const StateKey& session, const std::set<std::string>& tiers) {
  absl::MutexLock lock(&mu_);
  if (!keeps_notes_) return absl::UnimplementedError(name_);
  if (!store_status_.ok()) return store_status_;
  tiers.empty() ? void(notes_.erase(session)) : void(notes_[session] = tiers);
  return absl::OkStatus();
}

absl::StatusOr<std::map<StateKey, std::set<std::string>>> FakeTier::ErasureNotes() {
  absl::MutexLock lock(&mu_);
  if (!keeps_notes_) return absl::UnimplementedError(name_);
  return notes_;
}

absl::StatusOr<StoredSession> FakeTier::Describe(const StateKey& key) {
  GDN_ASSIGN_OR_RETURN(const SessionImagePtr image, Load(key));
  StoredSession stored{
      .key = key, .header = image->header, .layers = {}, .kinds = {}, .stored_at = {}, .bytes = image->bytes()};
  for (const LayerImage& layer : image->layers) {
    stored.layers.emplace_back(layer.layer, layer.extent);
    stored.kinds.push_back(layer.kind);
  }
  return stored;
}

TierUsage FakeTier::usage() const {
  absl::MutexLock lock(&mu_);
  return {.name = name_,
          .limit_bytes = limit_bytes_,
          .used_bytes = used_bytes_,
          .sessions = static_cast<int64_t>(images_.size())};
}

void FakeTier::FailAll(const absl::Status& status) {
  FailStores(status);
  FailLoads(status);
  FailErasures(status);
}

void FakeTier::FailStoresOf(const StateKey& key, const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  status.ok() ? void(refused_.erase(key)) : void(refused_[key] = status);
}

void FakeTier::Damage(const StateKey& key) {
  absl::MutexLock lock(&mu_);
  damaged_.insert(key);
}

std::map<StateKey, int64_t> FakeTier::versions() const {
  absl::MutexLock lock(&mu_);
  std::map<StateKey, int64_t> versions;
  for (const auto& [key, image] : images_) versions[key] = VersionOf(image);
  return versions;
}

HeldStore::HeldStore(FakeTier& tier, std::optional<StateKey> key) : tier_(tier) {
  tier_.OnStore([events = events_, key = std::move(key)](const StateKey& stored) {
    if (key.has_value() && stored != *key) return;
    events->begun.Notify();
    events->released.WaitForNotification();
  });
}

void HeldStore::Release() {
  if (events_->released.HasBeenNotified()) return;
  tier_.OnStore(nullptr);
  events_->released.Notify();
}

}  // namespace gdn
