#include "server/ring/ring.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "base/error.h"
#include "base/owned_fd.h"
#include "ring/gdn_ring.h"
#include "server/ring/ring_door.h"
#include "server/ring/ring_poller.h"
#include "server/ring/rings.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::ring_test {
namespace {

constexpr uint32_t kEntries = 8;
constexpr int64_t kArea = 64 << 10;

// Answers each submission with the bytes of its message and tensors, turned over where the test says so.
class Echo final : public PolledRing {
 public:
  explicit Echo(std::shared_ptr<Ring> ring) : ring_(std::move(ring)) {}
  Ring& ring() override { return *ring_; }
  void Serve(const gdn_ring_submission& submission, bool /*alone*/) override {
    ++served;
    if (silent || submission.method == GDN_RING_CANCEL) return;
    uint64_t from = submission.request_offset, tensors = 0;
    for (const uint64_t bytes : submission.tensor_bytes) tensors += bytes;
    if (!ring_->Contains(from, submission.message_bytes + tensors)) return ring_->End(GDN_RING_BROKEN);
    const std::string message(ring_->At(from), submission.message_bytes);
    const std::string tensor(ring_->At(from + gdn_ring_aligned(submission.message_bytes)), submission.tensor_bytes[0]);
    std::memcpy(ring_->At(submission.reply_offset), message.data(), message.size());
    std::memcpy(ring_->At(submission.reply_offset + gdn_ring_aligned(message.size())), tensor.data(), tensor.size());
    gdn_ring_completion completion = {};
    completion.id = submission.id;
    completion.message_bytes = message.size();
    completion.output_bytes = tensor.size();
    ring_->Complete(completion);
  }

  std::atomic<int> served{0};
  std::atomic<bool> silent{false};

 private:
  const std::shared_ptr<Ring> ring_;
};

struct ClientRing {
  explicit ClientRing(gdn_ring* opened) : ring(opened) {}
  ~ClientRing() { gdn_ring_close(ring); }
  gdn_ring* const ring;
};

class RingTest : public testing::Test {
 protected:
  std::shared_ptr<Echo> NewEcho() {
    auto ring = Ring::Make(kEntries, kArea).value();
    auto echo = std::make_shared<Echo>(std::move(ring));
    EXPECT_TRUE(rings_->poller->Add(echo).ok());
    return echo;
  }
  int Open(const std::string& token, gdn_ring** ring, uint32_t spin_us = 20) {
    return gdn_ring_open(rings_->door->path().c_str(), token.data(), spin_us, 2'000'000, ring, why_.data(),
                         why_.size());
  }
  std::unique_ptr<ClientRing> ClientOf(Echo& echo, const std::shared_ptr<Ring>& ring, uint32_t spin_us = 20) {
    gdn_ring* opened = nullptr;
    EXPECT_EQ(Open(rings_->door->Offer(ring), &opened, spin_us), 0) << why_.data();
    return std::make_unique<ClientRing>(opened);
  }
  static int CallWith(gdn_ring* ring, const std::string& message, const std::string& tensor, uint64_t timeout_us,
                      std::string& back) {
    gdn_ring_request request = {};
    request.message = message.data();
    request.message_bytes = message.size();
    request.tensors[0] = tensor.data();
    request.tensor_bytes[0] = tensor.size();
    request.reply_room = message.size() + tensor.size() + 128;
    gdn_ring_reply reply;
    const int end = gdn_ring_call(ring, GDN_RING_STEP, &request, timeout_us, &reply);
    if (end != GDN_RING_OK) return end;
    back.assign(static_cast<const char*>(reply.message), reply.message_bytes);
    if (reply.output_bytes > 0) back.append(static_cast<const char*>(reply.output), reply.output_bytes);
    gdn_ring_release(ring, &reply);
    return end;
  }

  const TempFolder folder_;
  const std::unique_ptr<Rings> rings_ = Rings::Start(folder_.path(), absl::Microseconds(20)).value();
  std::array<char, 256> why_ = {};
};

// A ring, what answers it and its client.
class OpenedRing : public RingTest {
 protected:
  void SetUp() override {
    ring_ = std::shared_ptr<Ring>(Ring::Make(kEntries, kArea).value());
    echo_ = std::make_shared<Echo>(ring_);
    ASSERT_TRUE(rings_->poller->Add(echo_).ok());
    client_ = ClientOf(*echo_, ring_);
    ASSERT_NE(client_->ring, nullptr);
  }
  void TearDown() override {
    client_ = nullptr;
    ring_->End(GDN_RING_ENDED);
    rings_->poller->Remove(*echo_);
  }
  // The ring's memory as a client that keeps no rules sees it.
  gdn_ring_header* Raw() {
    void* const mapped = mmap(nullptr, sizeof(gdn_ring_header), PROT_READ | PROT_WRITE, MAP_SHARED, ring_->fds()[0], 0);
    return static_cast<gdn_ring_header*>(mapped);
  }

  std::shared_ptr<Ring> ring_;
  std::shared_ptr<Echo> echo_;
  std::unique_ptr<ClientRing> client_;
};

TEST_F(OpenedRing, BringsMessagesAndTensorsBothWays) {
  for (const size_t size : {size_t{0}, size_t{1}, size_t{63}, size_t{64}, size_t{5000}}) {
    const std::string message(size + 3, 'm'), tensor(size, 't');
    std::string back;
    ASSERT_EQ(CallWith(client_->ring, message, tensor, 0, back), GDN_RING_OK);
    EXPECT_EQ(back, message + tensor) << size;
  }
  EXPECT_EQ(rings_->poller->counts().submissions, 5);
  EXPECT_EQ(rings_->poller->counts().broken, 0);
}

TEST_F(OpenedRing, WakesASleepingServerAndASleepingClient) {
  client_ = ClientOf(*echo_, ring_, /*spin_us=*/0);
  for (int i = 0; i < 20; ++i) {
    absl::SleepFor(absl::Milliseconds(3));  // longer than the poller spins
    std::string back;
    ASSERT_EQ(CallWith(client_->ring, "m", "t", 10'000'000, back), GDN_RING_OK) << i;
  }
}

TEST_F(OpenedRing, ServesManyThreadsEachItsOwn) {
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int thread = 0; thread < 12; ++thread) {  // more than there are entries
    threads.emplace_back([&, thread] {
      for (int i = 0; i < 200; ++i) {
        const std::string message = std::to_string(thread) + "." + std::to_string(i),
                          tensor(i * 37 % 3000, 'a' + thread);
        std::string back;
        if (CallWith(client_->ring, message, tensor, 0, back) == GDN_RING_OK && back == message + tensor) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, 12 * 200);
}

TEST_F(OpenedRing, SaysSoIfACallDoesNotFit) {
  std::string back;
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea, 't'), 0, back), GDN_RING_TOO_LARGE);
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea / 2, 't'), 0, back), GDN_RING_TOO_LARGE) << "with its reply";
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea / 2 - 512, 't'), 0, back), GDN_RING_OK);
}

class PlacedCalls : public OpenedRing {
 protected:
  static constexpr uint64_t kTensor = 3000;

  int Take(gdn_ring_place* place, uint64_t tensor = kTensor) {
    gdn_ring_request sizes = {};
    sizes.message_bytes = 100;
    sizes.tensor_bytes[0] = tensor;
    sizes.reply_room = 100 + tensor + 128;
    return gdn_ring_take_place(client_->ring, &sizes, /*timeout_us=*/1000, place);
  }
  int CallIn(const gdn_ring_place& place, const std::string& message, uint64_t timeout_us, std::string& back) {
    gdn_ring_reply reply;
    const int end =
        gdn_ring_call_in(client_->ring, &place, GDN_RING_STEP, message.data(), message.size(), timeout_us, &reply);
    if (end != GDN_RING_OK) return end;
    back.assign(static_cast<const char*>(reply.message), reply.message_bytes);
    back.append(static_cast<const char*>(reply.output), reply.output_bytes);
    return end;
  }
};

TEST_F(PlacedCalls, HaveTheTensorsThatAreInThePlace) {
  gdn_ring_place place;
  ASSERT_EQ(Take(&place), GDN_RING_OK);
  EXPECT_EQ(place.tensors[1], nullptr);
  for (int i = 0; i < 50; ++i) {
    const std::string message(static_cast<size_t>(1 + 2 * i), static_cast<char>('a' + i % 26));  // 1 to 99 bytes
    if (i % 3 != 2) std::memset(place.tensors[0], 'A' + i % 26, kTensor);  // else as the last call had them
    const std::string tensor(static_cast<const char*>(place.tensors[0]), kTensor);
    std::string back;
    ASSERT_EQ(CallIn(place, message, 0, back), GDN_RING_OK);
    EXPECT_EQ(back, message + tensor) << i;
    EXPECT_EQ(std::string(static_cast<const char*>(place.tensors[0]), kTensor), tensor) << "the inputs stay";
    ASSERT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK) << "other calls go on beside it";
    EXPECT_EQ(std::string(static_cast<const char*>(place.tensors[0]), kTensor), tensor) << "and leave it alone";
  }
  std::string none;
  EXPECT_EQ(CallIn(place, std::string(200, 'm'), 0, none), GDN_RING_TOO_LARGE);
  gdn_ring_return_place(client_->ring, &place);
  EXPECT_EQ(place.tensors[0], nullptr);
  gdn_ring_return_place(client_->ring, &place);  // nothing is left to return
}

TEST_F(PlacedCalls, LeaveHalfOfTheRingToOtherCalls) {
  gdn_ring_place large;
  EXPECT_EQ(Take(&large, kArea / 4), GDN_RING_TOO_LARGE) << "more than half of the area, with its reply";
  EXPECT_EQ(large.kept, nullptr);
  std::vector<gdn_ring_place> places(kEntries / 2);
  for (gdn_ring_place& place : places) ASSERT_EQ(Take(&place), GDN_RING_OK);
  gdn_ring_place more;
  EXPECT_EQ(Take(&more), GDN_RING_TOO_LARGE) << "they have half of the entries";
  std::string back;
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea / 4 - 512, 't'), 0, back), GDN_RING_OK);
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea / 2 - 512, 't'), 0, back), GDN_RING_TOO_LARGE)
      << "not waited for: nobody knows when the places are returned";
  gdn_ring_return_place(client_->ring, &places.back());
  EXPECT_EQ(Take(&places.back()), GDN_RING_OK);
  for (gdn_ring_place& place : places) gdn_ring_return_place(client_->ring, &place);
  EXPECT_EQ(CallWith(client_->ring, "m", std::string(kArea / 2 - 512, 't'), 0, back), GDN_RING_OK) << "all is free";
}

TEST_F(PlacedCalls, WaitForTheOneBeforeThatHadNoTimeLeft) {
  gdn_ring_place place;
  ASSERT_EQ(Take(&place), GDN_RING_OK);
  std::memset(place.tensors[0], 'x', kTensor);
  echo_->silent = true;
  std::string back;
  EXPECT_EQ(CallIn(place, "m", 20'000, back), GDN_RING_TIMEOUT);
  echo_->silent = false;
  EXPECT_EQ(CallIn(place, "m", 20'000, back), GDN_RING_TIMEOUT) << "the first is never answered";
  gdn_ring_return_place(client_->ring, &place);
  ASSERT_EQ(Take(&place), GDN_RING_OK) << "the server may still write to the first place; there is room for another";
  ring_->End(GDN_RING_ENDED);
  EXPECT_EQ(CallIn(place, "m", 0, back), GDN_RING_GONE);
  EXPECT_NE(place.tensors[0], nullptr) << "the inputs can still be read";
  gdn_ring_return_place(client_->ring, &place);
}

TEST_F(OpenedRing, EndsACallThatIsNotAnswered) {
  echo_->silent = true;
  std::string back;
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 20'000, back), GDN_RING_TIMEOUT);
  echo_->silent = false;
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK) << "its entry is still taken, others are not";
}

TEST_F(OpenedRing, TellsTheClientThatItHasEnded) {
  echo_->silent = true;
  std::thread end([this] {
    while (echo_->served == 0) absl::SleepFor(absl::Milliseconds(1));
    ring_->End(GDN_RING_ENDED);
  });
  std::string back;
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_GONE);
  end.join();
  EXPECT_EQ(gdn_ring_is_open(client_->ring), 0);
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_GONE);
}

TEST_F(OpenedRing, EndsIfItsClientClaimsMoreThanThereCanBe) {
  gdn_ring_header* const raw = Raw();
  GDN_RING_STORE(raw->submitted, 1000);
  const uint64_t one = 1;
  ASSERT_EQ(write(ring_->fds()[1], &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  for (int i = 0; i < 10'000 && !ring_->ended(); ++i) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_TRUE(ring_->ended());
  EXPECT_EQ(GDN_RING_LOAD(raw->ended), GDN_RING_BROKEN);
  EXPECT_EQ(echo_->served, 0);
  EXPECT_EQ(rings_->poller->counts().rings, 1);
  rings_->poller->Remove(*echo_);
  EXPECT_EQ(rings_->poller->counts().rings, 0);
  EXPECT_EQ(rings_->poller->counts().broken, 1);
  munmap(raw, sizeof(*raw));
}

TEST_F(OpenedRing, HasMemoryThatItsClientCannotShrink) {
  EXPECT_NE(ftruncate(ring_->fds()[0], 0), 0);
  EXPECT_NE(ftruncate(ring_->fds()[0], 1 << 30), 0);
  // A client can empty it.
  const int64_t bytes = Ring::MemoryBytes(kEntries, kArea);
  EXPECT_EQ(fallocate(ring_->fds()[0], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, bytes), 0);
  EXPECT_FALSE(ring_->Waiting());
}

TEST_F(OpenedRing, AnswersOthersWhileOneAnnouncesWithoutEnd) {
  const std::shared_ptr<Echo> noisy = NewEcho();
  std::atomic<bool> over{false};
  std::thread noise([&] {
    const uint64_t one = 1;
    while (!over) static_cast<void>(!write(noisy->ring().fds()[1], &one, sizeof(one)));
  });
  for (int i = 0; i < 50; ++i) {
    std::string back;
    EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK);
  }
  over = true;
  noise.join();
  noisy->ring().End(GDN_RING_ENDED);
  rings_->poller->Remove(*noisy);
}

// A client that makes its next submission as soon as the server has taken the last.
class Endless final : public PolledRing {
 public:
  explicit Endless(std::shared_ptr<Ring> ring)
      : ring_(std::move(ring)),
        header_(static_cast<gdn_ring_header*>(mmap(nullptr, sizeof(gdn_ring_header), PROT_READ | PROT_WRITE, MAP_SHARED,
                                                   ring_->fds()[0], /*offset=*/0))) {}
  ~Endless() override { munmap(header_, sizeof(gdn_ring_header)); }
  Ring& ring() override { return *ring_; }
  void Serve(const gdn_ring_submission& /*submission*/, bool /*alone*/) override { Submit(); }
  void Submit() { GDN_RING_STORE(header_->submitted, ++submitted_); }

 private:
  const std::shared_ptr<Ring> ring_;
  gdn_ring_header* const header_;
  uint32_t submitted_ = 0;
};

TEST_F(OpenedRing, AnswersOthersWhileOneSubmitsWithoutEnd) {
  const auto busy = std::make_shared<Endless>(Ring::Make(kEntries, kArea).value());
  ASSERT_TRUE(rings_->poller->Add(busy).ok());
  busy->Submit();
  const uint64_t one = 1;
  ASSERT_EQ(write(busy->ring().fds()[1], &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  while (rings_->poller->counts().submissions == 0) absl::SleepFor(absl::Milliseconds(1));
  for (int i = 0; i < 20; ++i) {
    std::string back;
    ASSERT_EQ(CallWith(client_->ring, "m", "t", 10'000'000, back), GDN_RING_OK) << i;
  }
  rings_->poller->Remove(*busy);
}

// A child process that ends with what `run` returns; gRPC and gtest are not for it.
template <typename Run>
int ExitCodeOfFork(const Run& run) {
  const pid_t child = fork();
  if (child == 0) _exit(run());
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(OpenedRing, IsNotForAForkOfItsClient) {
  std::string back;
  ASSERT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK);
  gdn_ring_header* const raw = Raw();
  const uint32_t submitted = GDN_RING_LOAD(raw->submitted);
  EXPECT_EQ(ExitCodeOfFork([this] {
              std::string none;
              return CallWith(client_->ring, "m", "t", 1'000'000, none);
            }),
            GDN_RING_FORKED);
  EXPECT_EQ(ExitCodeOfFork([this] { return gdn_ring_is_open(client_->ring); }), 0);
  EXPECT_EQ(GDN_RING_LOAD(raw->submitted), submitted) << "a fork has written to its parent's ring";
  munmap(raw, sizeof(*raw));
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK);
}

TEST_F(OpenedRing, AForkOfABusyClientGivesItsMemoryBack) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "a sanitizer's allocator may be locked by another thread at the fork";
#endif
  std::atomic<bool> over{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      std::string back;
      while (!over) CallWith(client_->ring, "m", std::string(2000, 't'), 0, back);
    });
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(ExitCodeOfFork([this] {
                gdn_ring_close(client_->ring);
                return 7;
              }),
              7);
  }
  over = true;
  for (std::thread& thread : threads) thread.join();
  std::string back;
  EXPECT_EQ(CallWith(client_->ring, "m", "t", 0, back), GDN_RING_OK) << "the parent's ring goes on";
}

TEST_F(RingTest, GoesOnceToWhoSendsItsToken) {
  const std::shared_ptr<Ring> ring = Ring::Make(kEntries, kArea).value();
  const std::string token = rings_->door->Offer(ring);
  gdn_ring* opened = nullptr;
  EXPECT_NE(Open(std::string(32, 'x'), &opened), 0);
  EXPECT_EQ(opened, nullptr);
  EXPECT_NE(std::string(why_.data()).find("token"), std::string::npos) << why_.data();
  ASSERT_EQ(Open(token, &opened), 0) << why_.data();
  gdn_ring_close(opened);
  EXPECT_NE(Open(token, &opened), 0) << "it worked twice";
  const std::string back = rings_->door->Offer(ring);
  rings_->door->TakeBack(back);
  EXPECT_NE(Open(back, &opened), 0) << "it was taken back";
}

TEST_F(RingTest, DoesNotWaitForVisitorsWhoSayNothing) {
  std::vector<OwnedFd> visitors;
  for (int i = 0; i < 100; ++i) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    rings_->door->path().copy(address.sun_path, sizeof(address.sun_path) - 1);
    visitors.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(visitors.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    if (i % 2 == 0) {
      ASSERT_EQ(send(visitors.back().get(), "half a token", 12, MSG_NOSIGNAL), 12);
    }
  }
  const std::shared_ptr<Ring> ring = Ring::Make(kEntries, kArea).value();
  gdn_ring* opened = nullptr;
  EXPECT_EQ(Open(rings_->door->Offer(ring), &opened), 0) << why_.data();
  gdn_ring_close(opened);
}

TEST_F(RingTest, AStrangerWhoConnectsWithoutEndPushesNobodyOut) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  constexpr uid_t kStranger = 4321, kSame = static_cast<uid_t>(-1);
  ASSERT_EQ(chmod(folder_.path().c_str(), 0711), 0);  // as /dev/shm, where anyone finds the socket
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  rings_->door->path().copy(address.sun_path, sizeof(address.sun_path) - 1);
  const auto connected = [&address] {
    OwnedFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    return connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 ? std::move(fd)
                                                                                                : OwnedFd();
  };
  const std::shared_ptr<Ring> ring = Ring::Make(kEntries, kArea).value();
  const std::string token = rings_->door->Offer(ring);
  const OwnedFd owner = connected();
  ASSERT_EQ(send(owner.get(), token.data(), 10, MSG_NOSIGNAL), 10);
  std::array<OwnedFd, 300> visits;
  std::thread([&] {
    // The system call changes this thread's user alone; the function of libc would change all threads'.
    ASSERT_EQ(syscall(SYS_setresuid, kSame, kStranger, kSame), 0);
    for (OwnedFd& visit : visits) visit = connected();
  }).join();
  for (const OwnedFd& visit : visits) ASSERT_TRUE(visit.valid());
  // Visitors are let in in order, so the server has taken all of them once it has answered one that came behind them.
  gdn_ring* behind = nullptr;
  EXPECT_EQ(Open(rings_->door->Offer(ring), &behind), 0) << why_.data();
  gdn_ring_close(behind);
  ASSERT_EQ(send(owner.get(), token.data() + 10, token.size() - 10, MSG_NOSIGNAL), 22) << "it was shown out";
  char byte = 1;
  const timeval limit = {5, 0};
  setsockopt(owner.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  EXPECT_EQ(recv(owner.get(), &byte, 1, 0), 1) << "its token was not taken";
}

TEST_F(RingTest, AClientWithTooFewDescriptorsKeepsNone) {
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit few = {std::min<rlim_t>(before.rlim_cur, 256), before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
  // Both ends of the connection take one, then come the ring's three.
#ifdef __SANITIZE_THREAD__
  constexpr size_t kEnough = 6;  // its runtime opens a file now and then
#else
  constexpr size_t kEnough = 5;
#endif
  for (const size_t free : {size_t{0}, size_t{3}, size_t{4}, kEnough}) {
    const std::shared_ptr<Ring> ring = Ring::Make(kEntries, kArea).value();
    const std::string token = rings_->door->Offer(ring);
    std::vector<OwnedFd> fillers;
    const auto fill = [&fillers] {
      for (;;) {
        OwnedFd one(open("/dev/null", O_RDONLY | O_CLOEXEC));
        if (!one.valid()) return fillers.size();
        fillers.push_back(std::move(one));
      }
    };
    const size_t all = fill();
    fillers.resize(all - free);
    gdn_ring* opened = nullptr;
    EXPECT_EQ(Open(token, &opened) == 0, free == kEnough) << free << ": " << why_.data();
    gdn_ring_close(opened);
    ring->End(GDN_RING_ENDED);  // closes the server's end of the connection
    for (int i = 0; i < 1000 && fill() < all; ++i) absl::SleepFor(absl::Milliseconds(1));
    EXPECT_EQ(fillers.size(), all) << "with " << free << " free descriptors some were kept";
    rings_->door->TakeBack(token);
  }
  setrlimit(RLIMIT_NOFILE, &before);
}

TEST(RingDoor, TheUserWithMostVisitorsMakesRoom) {
  EXPECT_EQ(RingDoor::MakesRoom({7}), 0u);
  EXPECT_EQ(RingDoor::MakesRoom({7, 8, 8}), 1u);
  EXPECT_EQ(RingDoor::MakesRoom({8, 7, 7, 8, 8}), 0u);
  EXPECT_EQ(RingDoor::MakesRoom({7, 8}), 0u) << "the oldest of all, where all have as many";
}

TEST_F(RingTest, LeavesNoSocketBehindAndRemovesThoseOfKilledServers) {
  const auto sockets = [this] {
    return std::distance(std::filesystem::directory_iterator(folder_.path()), std::filesystem::directory_iterator());
  };
  EXPECT_EQ(sockets(), 1);
  {
    const auto second = RingDoor::Open(folder_.path()).value();
    EXPECT_EQ(sockets(), 2) << "a live server keeps its socket";
  }
  EXPECT_EQ(sockets(), 1);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  (folder_.path() + "/gdn-ring-left").copy(address.sun_path, sizeof(address.sun_path) - 1);
  {
    const OwnedFd dead(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(bind(dead.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  EXPECT_EQ(sockets(), 2);
  const auto third = RingDoor::Open(folder_.path()).value();
  EXPECT_EQ(sockets(), 2) << "the dead one has gone, the third is there";
}

}  // namespace
}  // namespace gdn::ring_test
