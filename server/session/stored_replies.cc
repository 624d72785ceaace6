#include "server/session/stored_replies.h"

#include <algorithm>

#include "server/session/session.h"

namespace gdn {

StoredReplies::Kept StoredReplies::Keep(const ByteAccountPtr& account, Place place, int64_t bytes) {
  auto node = std::make_unique<Node>();
  node->charge = ledger_.Charge(BytePool::kReplies, account, bytes);
  node->place = std::move(place);
  absl::MutexLock lock(&mu_);
  std::list<Node*>& kept = kept_[account];
  node->at = kept.insert(kept.end(), node.get());
  return {node.release(), Releaser{this}};
}

void StoredReplies::Unlist(Node& node) {
  const auto it = kept_.find(node.charge.account());
  it->second.erase(node.at);
  if (it->second.empty()) kept_.erase(it);
  node.listed = false;
}

void StoredReplies::Release(std::unique_ptr<Node> node) {
  absl::MutexLock lock(&mu_);
  if (node->listed) Unlist(*node);
}

bool StoredReplies::TakeNext(Place* place) {
  ByteCharge charge;  // released after the mutex
  absl::MutexLock lock(&mu_);
  if (bytes() <= limit() || kept_.empty()) return false;
  const auto most = std::max_element(kept_.begin(), kept_.end(), [this](const auto& a, const auto& b) {
    return ledger_.SharesHeld(BytePool::kReplies, *a.first) < ledger_.SharesHeld(BytePool::kReplies, *b.first);
  });
  Node& node = *most->second.front();
  *place = std::move(node.place);
  Unlist(node);
  charge = std::move(node.charge);
  ++dropped_;
  return true;
}

void StoredReplies::Trim() {
  for (Place place; bytes() > limit() && TakeNext(&place);) {
    if (const std::shared_ptr<Session> session = place.session.lock(); session != nullptr) {
      session->DropOutput(place.layer, place.reply);
    }
  }
}

int64_t StoredReplies::dropped() const {
  absl::MutexLock lock(&mu_);
  return dropped_;
}

}  // namespace gdn
