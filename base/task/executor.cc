#include "base/task/executor.h"

#include <cstdio>
#include <cstdlib>

namespace gdn {

void EndProcess(const char* defect) {
  std::fprintf(stderr, "gdn: a defect of the program: %s\n", defect);
  std::abort();
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdangling-pointer"  // pass_ is read only while this Run is on the stack
#endif
void Flow::Run() {
  Pass pass{.next = suspended_};
  pass_ = &pass;
  // A coroutine that waits leaves `next` null. From then on another thread may have the flow.
  while (pass.next) std::exchange(pass.next, nullptr).resume();
  if (pass.ended) End();
}
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

void Flow::Continue(std::coroutine_handle<> next) {
  pass_->next = next;
  pass_->ended = !next;
}

void FlowQueue::Push(Flow* flow) {
  if (flow == nullptr) return;
  flow->next_ = nullptr;
  (last_ == nullptr ? first_ : last_->next_) = flow;
  last_ = flow;
}

Flow* FlowQueue::Pop() {
  Flow* flow = first_;
  if (flow == nullptr) return nullptr;
  first_ = flow->next_;
  if (first_ == nullptr) last_ = nullptr;
  return flow;
}

void FlowQueue::PostAll() {
  while (Flow* flow = Pop()) flow->executor().Post(*flow);
}

void Executor::CheckUnused() const {
  if (groups_.load() != 0) EndProcess("an executor is destroyed before the task groups on it");
}

}  // namespace gdn
