#include "base/task/inline_executor.h"

#include <utility>

namespace gdn {

void InlineExecutor::Post(Flow& flow) {
  // All inline executors that run flows on this thread share it.
  thread_local FlowQueue* running = nullptr;
  if (running != nullptr) return running->Push(&flow);
  FlowQueue ready;
  running = &ready;
  ready.Push(&flow);
  while (Flow* next = ready.Pop()) next->Run();
  running = nullptr;
}

}  // namespace gdn
