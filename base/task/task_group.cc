#include "base/task/task_group.h"

namespace gdn {

class TaskGroup::Root final : public Flow {
 public:
  Root(TaskGroup& group, Task<void> task) : Flow(group.executor_), group_(group), task_(std::move(task)) {
    SuspendAt(task_.Attach(*this));
  }
  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* root, size_t bytes) { FreeFrame(root, bytes); }

 private:
  void End() override {
    TaskGroup& group = group_;
    delete this;
    group.RootEnded();
  }

  TaskGroup& group_;
  Task<void> task_;
};

TaskGroup::TaskGroup(Executor& executor) : executor_(executor) { ++executor_.groups_; }

TaskGroup::~TaskGroup() {
  Wait();
  --executor_.groups_;
}

void TaskGroup::Spawn(Task<void> task) {
  {
    const std::lock_guard lock(mu_);
    ++open_;
  }
  executor_.Post(*new Root(*this, std::move(task)));
}

void TaskGroup::RootEnded() {
  const std::lock_guard lock(mu_);
  // With the mutex, without which the group may be gone once open_ is 0.
  if (--open_ == 0) ended_.notify_all();
}

void TaskGroup::Wait() {
  const auto over = [this] { return open() == 0; };
  executor_.BlockUntil(over, [this] {
    std::unique_lock lock(mu_);
    ended_.wait(lock, [this] { return open_ == 0; });
  });
}

int64_t TaskGroup::open() const {
  const std::lock_guard lock(mu_);
  return open_;
}

}  // namespace gdn
