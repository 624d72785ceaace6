// Waiters in the order in which they came, linked through nodes that they own.
//
// Thread safety: none; the list's owner locks. Ownership: borrows nodes, which must be unlinked before they are
// destroyed.
//
//   list.PushBack(node);
//   while (WaitNode* first = list.front()) first->Unlink();
#pragma once

namespace gdn {

class Waiter;

struct WaitNode {
  explicit WaitNode(Waiter* of) : waiter(of) {}
  WaitNode(const WaitNode&) = delete;
  WaitNode& operator=(const WaitNode&) = delete;

  // Removes the node from its list, whose lock the caller holds. Does nothing if it is in no list.
  void Unlink() {
    previous->next = next;
    next->previous = previous;
    next = previous = this;
  }

  Waiter* waiter;
  WaitNode* previous = this;
  WaitNode* next = this;
};

class WaitList {
 public:
  bool empty() const { return head_.next == &head_; }
  WaitNode* front() { return empty() ? nullptr : head_.next; }
  WaitNode* After(const WaitNode& node) { return node.next == &head_ ? nullptr : node.next; }
  void PushBack(WaitNode& node) {
    node.previous = head_.previous;
    node.next = &head_;
    head_.previous->next = &node;
    head_.previous = &node;
  }

 private:
  WaitNode head_{nullptr};
};

}  // namespace gdn
