// The outputs of stored replies: how many bytes each account keeps, and which outputs are dropped if there is no space.
//
// A reply's id, payload hash and counts, which make a step happen once, always stay with its session. Its output may be
// dropped: above the pool's limit, the oldest output of the account that is furthest over its share is dropped.
// Thread safety: safe from any thread; a Kept may be made and destroyed under its session's mutex; Trim takes those
// mutexes and is called without any. Ownership: outlives every Kept; sessions are not kept alive.
//
//   StoredReplies replies(ledger);
//   layer.kept = replies.Keep(account, {.session = weak_from_this(), .layer = i, .reply = reply.get()}, bytes);
//   replies.Trim();  // once the session's mutex is free
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "server/admission/byte_ledger.h"
#include "state_store/session_image.h"

namespace gdn {

class Session;

class StoredReplies {
 public:
  // The reply that an output belongs to, and the layer of the session that has it.
  struct Place {
    std::weak_ptr<Session> session;
    size_t layer = 0;  // index of the layer
    const StoredReply* reply = nullptr;
  };

  explicit StoredReplies(ByteLedger& ledger) : ledger_(ledger) {}
  StoredReplies(const StoredReplies&) = delete;
  StoredReplies& operator=(const StoredReplies&) = delete;

 private:
  struct Node {
    ByteCharge charge;
    Place place;
    bool listed = true;  // false once it was chosen to be dropped
    std::list<Node*>::iterator at;
  };

 public:
  struct Releaser {
    StoredReplies* replies = nullptr;
    void operator()(Node* node) const { replies->Release(std::unique_ptr<Node>(node)); }
  };
  // Charges the bytes of an output to its account in the pool kReplies, until this object is destroyed or the output is
  // dropped.
  using Kept = std::unique_ptr<Node, Releaser>;

  // Counts an output of `bytes` bytes as the newest of its account. Does not check the limit, which Trim does. May be
  // called under the session's mutex.
  Kept Keep(const ByteAccountPtr& account, Place place, int64_t bytes);
  // Drops outputs (Session::DropOutput) until the rest is within the limit. Call without any session's mutex.
  void Trim();

  int64_t bytes() const { return ledger_.held(BytePool::kReplies); }
  int64_t limit() const { return ledger_.limit(BytePool::kReplies); }
  int64_t dropped() const;

 private:
  void Release(std::unique_ptr<Node> node);
  // Chooses the next output to drop, sets `place` to it, and stops counting its bytes. Returns false if the outputs are
  // within the limit.
  bool TakeNext(Place* place);
  void Unlist(Node& node) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  ByteLedger& ledger_;
  mutable absl::Mutex mu_;
  std::map<ByteAccountPtr, std::list<Node*>> kept_ ABSL_GUARDED_BY(mu_);  // the oldest first; no empty lists
  int64_t dropped_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace gdn
