#include "kernels/gpu/on_host/device_queue.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/status_macros.h"
#include "base/threads/this_thread.h"
#include "kernels/gpu/on_host/fiber_block.h"
#include "kernels/gpu/on_host/tsan_edges.h"

namespace gdn::gpu::simt {
namespace {

// A poll does not have to be answered at once, but one that is repeated has to be in the end.
constexpr int kPollsOfALazyStream = 4;

// Streams that were destroyed and whose threads may still run what they were given. Joined when they have ended, and at
// the program's end.
class Leaving {
 public:
  ~Leaving() { Join(/*all=*/true); }

  void Add(std::shared_ptr<HostStream> stream) {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&mu_);
    streams_.push_back(std::move(stream));
  }

  void Join(bool all) {
    std::vector<std::shared_ptr<HostStream>> ended;
    {
      const UnseenByTsan unseen;
      absl::MutexLock lock(&mu_);
      const auto first = std::partition(streams_.begin(), streams_.end(),
                                        [&](const auto& stream) { return !all && !stream->HasEnded(); });
      std::move(first, streams_.end(), std::back_inserter(ended));
      streams_.erase(first, streams_.end());
    }
    for (const auto& stream : ended) stream->Join();
  }

 private:
  absl::Mutex mu_;
  std::vector<std::shared_ptr<HostStream>> streams_ ABSL_GUARDED_BY(mu_);
};

Leaving& TheLeaving() {
  static Leaving leaving;
  return leaving;
}

StreamPace PaceOf(const HostStreamsOptions& options, uint64_t number, std::mt19937_64& random) {
  if (number < options.paces.size()) return options.paces[number];
  return static_cast<StreamPace>(random() % 3);
}

}  // namespace

HostStream::HostStream(std::shared_ptr<HostDevice> device, uint64_t seed, StreamPace pace)
    : device_(std::move(device)), seed_(seed), pace_(pace), random_(seed) {}

void HostStream::Start() { thread_ = std::thread(&HostStream::Run, this); }

void HostStream::Join() {
  thread_.join();
  Rely(this);
}

bool HostStream::HasEnded() {
  absl::MutexLock lock(&device_->mu_);
  return ended_;
}

absl::Status HostStream::Enqueue(const char* what, Work work) { return Push(what, std::move(work)).status(); }

absl::StatusOr<int64_t> HostStream::Push(const char* what, Work work, bool counted) {
  auto operation = std::make_unique<Operation>(Operation{what, -1, std::move(work)});
  Promise(operation.get());
  const UnseenByTsan unseen;
  absl::MutexLock lock(&device_->mu_);
  if (counted) operation->number = device_->operations_++;
  if (!device_->failure_.ok()) return device_->failure_;
  queue_.push_back(std::move(operation));
  return ++pushed_;
}

absl::StatusOr<std::shared_ptr<StreamPoint>> HostStream::Mark(const char* what, bool counted) {
  auto point = std::make_shared<StreamPoint>();
  point->stream = shared_from_this();
  const auto arrive = [to = point.get(), point] {
    to->time = Clock::now();
    Promise(to);
    return absl::OkStatus();
  };
  GDN_ASSIGN_OR_RETURN(point->ticket, Push(what, arrive, counted));
  return point;
}

absl::StatusOr<std::shared_ptr<StreamPoint>> HostStream::Record() { return Mark("a record of an event", true); }

absl::Status HostStream::WaitsFor(std::shared_ptr<const StreamPoint> point) {
  return Enqueue("a wait for an event", [point = std::move(point)] { return point->stream->device().WaitFor(*point); });
}

absl::Status HostStream::Synchronize() {
  const absl::StatusOr<std::shared_ptr<StreamPoint>> point = Mark("a synchronisation", false);
  if (point.ok()) return device_->WaitFor(**point);
  {
    // A lost device does no more work, but what it was given may still be under way.
    const UnseenByTsan unseen;
    absl::MutexLock lock(&device_->mu_);
    device_->AwaitTicket(*this, pushed_);
  }
  Rely(this);
  return device_->status();
}

bool HostStream::MayRun() const {
  if (closing_) return true;
  return !queue_.empty() && (pace_ != StreamPace::kLazy || passed_ < demanded_);
}

void HostStream::Delay() {
  if (pace_ != StreamPace::kShuffled) return;
  const uint64_t draw = random_() % 16;
  if (draw >= 12) std::this_thread::sleep_for(std::chrono::microseconds(random_() % 200));
  for (uint64_t i = 8; i < draw && draw < 12; ++i) std::this_thread::yield();
}

void HostStream::Run() {
  NameThisThread("gdn-host-stream");
  SetScheduleSeed(seed_);
  while (RunNext()) {
  }
  Promise(this);
}

bool HostStream::RunNext() {
  std::unique_ptr<Operation> operation;
  {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&device_->mu_);
    device_->mu_.Await(absl::Condition(this, &HostStream::MayRun));
    if (queue_.empty()) {
      std::erase(device_->streams_, shared_from_this());
      ended_ = true;
      return false;
    }
    operation = std::move(queue_.front());
    queue_.pop_front();
  }
  Delay();
  absl::Status status = device_->MayStart(*operation);
  Rely(operation.get());
  if (status.ok()) status = operation->work();
  Promise(this);
  const UnseenByTsan unseen;
  operation = nullptr;  // what it holds is let go before it counts as done
  absl::MutexLock lock(&device_->mu_);
  device_->Fail(status);
  ++passed_;
  return true;
}

HostDevice::~HostDevice() {
  for (const Freed& freed : freed_) ReleaseMemory(*freed.memory);
}

HostStream* HostDevice::MakeStream() {
  TheLeaving().Join(/*all=*/false);
  std::shared_ptr<HostStream> stream;
  {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&mu_);
    const uint64_t number = streams_made_++;
    std::mt19937_64 random(options_.seed * 1000003 + number);
    const StreamPace pace = PaceOf(options_, number, random);
    stream = std::make_shared<HostStream>(shared_from_this(), random(), pace);
    streams_.push_back(stream);
  }
  stream->Start();
  return stream.get();
}

void HostDevice::DestroyStream(HostStream* stream) {
  TheLeaving().Add(stream->shared_from_this());
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  stream->closing_ = true;
}

absl::Status HostDevice::status() {
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  return failure_;
}

int64_t HostDevice::operations() {
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  return operations_;
}

int64_t HostDevice::FailAfter(int64_t more) {
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  return fail_at_ = operations_ + more;
}

void HostDevice::Drain() {
  TheLeaving().Join(/*all=*/true);
  std::vector<std::shared_ptr<HostStream>> streams;
  {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&mu_);
    streams = streams_;
  }
  for (const auto& stream : streams) static_cast<void>(stream->Synchronize());  // the failure stays the device's
}

absl::Status HostDevice::WaitFor(const StreamPoint& point) {
  absl::Status status;
  {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&mu_);
    AwaitTicket(*point.stream, point.ticket);
    SweepFreed();
    status = failure_;
  }
  Rely(&point);
  // A point behind a failure promises nothing, but its stream has passed it.
  if (!status.ok()) Rely(point.stream.get());
  return status;
}

absl::StatusOr<bool> HostDevice::IsDone(const StreamPoint& point) {
  {
    const UnseenByTsan unseen;
    absl::MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    HostStream& stream = *point.stream;
    if (stream.passed_ < point.ticket) {
      if (++stream.polls_ % kPollsOfALazyStream == 0) stream.demanded_ = std::max(stream.demanded_, point.ticket);
      return false;
    }
  }
  Rely(&point);
  return true;
}

void HostDevice::FreeLater(std::shared_ptr<Allocation> memory) {
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  Freed freed{std::move(memory), {}};
  for (const auto& stream : streams_) {
    if (stream->passed_ < stream->pushed_) freed.users.emplace_back(stream, stream->pushed_);
  }
  if (!freed.users.empty()) PoisonMemory(freed.memory->data, freed.memory->bytes);
  freed_.push_back(std::move(freed));
  SweepFreed();
}

absl::Status HostDevice::MayStart(const HostStream::Operation& operation) {
  const UnseenByTsan unseen;
  absl::MutexLock lock(&mu_);
  if (!failure_.ok() || operation.number < 0 || operation.number != fail_at_) return failure_;
  return absl::InternalError(absl::StrCat(operation.what, " fails as it was asked to, operation ", operation.number));
}

void HostDevice::Fail(const absl::Status& status) {
  if (status.ok() || !failure_.ok()) return;
  failure_ = MakeError(absl::StatusCode::kUnavailable, reason::kDeviceFailed,
                       absl::StrCat("host executor: ", std::string(status.message()),
                                    "; the device must be taken as lost, with all that is on it"),
                       {});
}

void HostDevice::AwaitTicket(HostStream& stream, int64_t ticket) {
  stream.demanded_ = std::max(stream.demanded_, ticket);
  const auto passed = [&] { return stream.passed_ >= ticket; };
  mu_.Await(absl::Condition(&passed));
}

void HostDevice::SweepFreed() {
  const auto in_use = [](const Freed& freed) {
    return std::any_of(freed.users.begin(), freed.users.end(),
                       [](const auto& user) { return user.first->passed_ < user.second; });
  };
  const auto first = std::partition(freed_.begin(), freed_.end(), in_use);
  for (auto freed = first; freed != freed_.end(); ++freed) {
    if (!freed->users.empty() && !PoisonIsWhole(*freed->memory)) {
      Fail(absl::InternalError(
          absl::StrCat("memory of ", freed->memory->bytes, " bytes was written after it had been freed")));
    }
    ReleaseMemory(*freed->memory);
  }
  freed_.erase(first, freed_.end());
}

}  // namespace gdn::gpu::simt
