#include "server/ring/ring_poller.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/string_cat.h"
#include "base/threads/steady_clock.h"
#include "base/threads/this_thread.h"

namespace gdn {
namespace {

constexpr int kEvents = 64;  // taken from the system at a time

void Pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

bool Watch(int epoll, int fd, uint64_t number) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.u64 = number;
  return epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<RingPoller>> RingPoller::Start(absl::Duration spin) {
  OwnedFd epoll(epoll_create1(EPOLL_CLOEXEC)), stop(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC));
  if (!epoll.valid() || !stop.valid() || !Watch(epoll.get(), stop.get(), /*number=*/0)) {
    return absl::UnavailableError(StrCat("no descriptors for the poller of rings: ", std::strerror(errno)));
  }
  try {
    return std::unique_ptr<RingPoller>(new RingPoller(std::move(epoll), std::move(stop), spin));
  } catch (const std::system_error& error) {
    return absl::UnavailableError(StrCat("no thread for the poller of rings: ", error.what()));
  }
}

RingPoller::RingPoller(OwnedFd epoll, OwnedFd stop, absl::Duration spin)
    : epoll_(std::move(epoll)), stop_(std::move(stop)), spin_(spin), thread_([this] { Run(); }) {}

RingPoller::~RingPoller() {
  const uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof(one)));  // an empty eventfd takes it
  thread_.join();
}

absl::Status RingPoller::Add(std::shared_ptr<PolledRing> ring) {
  const int fd = ring->ring().wake_fd();
  absl::MutexLock lock(&mu_);
  const uint64_t number = ++added_;
  if (!Watch(epoll_.get(), fd, number)) {
    return MakeError(absl::StatusCode::kResourceExhausted, reason::kSharedMemoryExhausted,
                     StrCat("the system watches no more rings: ", std::strerror(errno), "; send steps in messages"));
  }
  rings_[number] = std::move(ring);
  return absl::OkStatus();
}

void RingPoller::Remove(PolledRing& ring) {
  ring.ring().StopTaking();
  while (served_.load() == &ring) served_.wait(&ring);
  std::shared_ptr<PolledRing> removed;  // destroyed after the lock is released
  absl::MutexLock lock(&mu_);
  const auto found = std::ranges::find_if(rings_, [&ring](const auto& entry) { return entry.second.get() == &ring; });
  if (found == rings_.end()) return;
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, found->second->ring().wake_fd(), nullptr);
  if (ring.ring().broken()) broken_.fetch_add(1, std::memory_order_relaxed);
  removed = std::move(found->second);
  rings_.erase(found);
}

RingPoller::Counts RingPoller::counts() const {
  absl::MutexLock lock(&mu_);
  return {.rings = static_cast<int64_t>(rings_.size()),
          .broken = broken_.load(std::memory_order_relaxed),
          .submissions = submissions_.load(std::memory_order_relaxed)};
}

void RingPoller::Run() {
  NameThisThread("gdn-rings");
  absl::Duration spin = spin_;
  SteadyTime idle_since = SteadyNow();
  for (;;) {
    if (TakeTurn()) {
      // Rings that keep this thread busy must not hide those that announce themselves.
      if (!Awaken(/*timeout_ms=*/0)) return;
      spin = spin_;
      idle_since = SteadyNow();
    } else if (!active_.empty() && SteadyNow() - idle_since < spin) {
      Pause();
    } else {
      spin = std::max(spin / 2, spin_ / 16);
      if (!Sleep()) return;
      idle_since = SteadyNow();
    }
  }
}

bool RingPoller::TakeTurn() {
  if (active_.empty()) return false;
  std::erase_if(active_, [](const auto& ring) { return ring->ring().stopped(); });
  const auto waiting = std::ranges::count_if(active_, [](const auto& ring) { return ring->ring().Waiting(); });
  for (const std::shared_ptr<PolledRing>& polled : active_) {
    // Remove stops the ring and then looks at served_, so one of the two sees the other.
    served_.store(polled.get());
    if (!polled->ring().stopped()) Serve(*polled, /*alone=*/waiting <= 1);
    served_.store(nullptr);
    served_.notify_all();
  }
  return waiting > 0;
}

void RingPoller::Serve(PolledRing& polled, bool alone) {
  gdn_ring_submission submission;
  switch (polled.ring().Take(submission)) {
    case Ring::Took::kNothing:
      break;
    case Ring::Took::kBroken:
      polled.ring().End(GDN_RING_BROKEN);
      break;
    case Ring::Took::kOne:
      submissions_.fetch_add(1, std::memory_order_relaxed);
      polled.Serve(submission, alone);
      break;
  }
}

bool RingPoller::Sleep() {
  // From here on clients announce their submissions. One that came before is still to be seen.
  for (const std::shared_ptr<PolledRing>& ring : active_) ring->ring().SetWaits(true);
  std::erase_if(active_, [](const auto& ring) { return !ring->ring().Waiting(); });
  for (const std::shared_ptr<PolledRing>& ring : active_) ring->ring().SetWaits(false);
  return Awaken(active_.empty() ? -1 : 0);
}

bool RingPoller::Awaken(int timeout_ms) {
  std::array<epoll_event, kEvents> events;
  const int count = epoll_wait(epoll_.get(), events.data(), kEvents, timeout_ms);
  for (int i = 0; i < count; ++i) {
    const uint64_t number =
        events[static_cast<size_t>(i)].data.u64;  // a copy: the event is packed, its parts unaligned
    if (number == 0) return false;
    absl::MutexLock lock(&mu_);
    const auto found = rings_.find(number);
    if (found == rings_.end()) continue;
    found->second->ring().SetWaits(false);
    if (std::ranges::find(active_, found->second) == active_.end()) active_.push_back(found->second);
  }
  return true;
}

}  // namespace gdn
