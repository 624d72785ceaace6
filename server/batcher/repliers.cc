#include "server/batcher/repliers.h"

#include <utility>

#include "base/this_thread.h"

namespace gdn {

Repliers::Repliers(int threads) {
  for (int i = 0; i < threads; ++i) {
    threads_.emplace_back([this] {
      NameThisThread("gdn-replier");
      Loop();
    });
  }
}

Repliers::~Repliers() {
  {
    absl::MutexLock lock(&mu_);
    stop_ = true;
  }
  for (std::thread& thread : threads_) thread.join();
}

void Repliers::Run(std::function<void()> reply) {
  absl::MutexLock lock(&mu_);
  waiting_.push_back(std::move(reply));
}

void Repliers::Loop() {
  const auto any = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return stop_ || !waiting_.empty(); };
  for (;;) {
    std::function<void()> reply;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&any));
      if (waiting_.empty()) return;
      reply = std::move(waiting_.front());
      waiting_.pop_front();
    }
    reply();
  }
}

}  // namespace gdn
