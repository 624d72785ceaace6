#include "base/task/inline_executor.h"

#include <utility>

namespace gdn {

void InlineExecutor::Post(Flow& flow) {
  // Flows of other inline executors are in it as well: the thread is what they share.
  thread_local FlowQueue* running = nullptr;
  if (running != nullptr) return running->Push(&flow);
  FlowQueue ready;
  running = &ready;
  ready.Push(&flow);
  while (Flow* next = ready.Pop()) next->Run();
  running = nullptr;
}

}  // namespace gdn
