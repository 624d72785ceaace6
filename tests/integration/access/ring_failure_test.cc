// Every system call and allocation of a ring's opening fails in turn, on the server's side and on the client's. The
// opening succeeds or says why not; calls go on, nothing is left behind, and the next opening works.
#include <dirent.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>

#include "client/cpp/client.h"
#include "server/ring/rings.h"
#include "tests/integration/support/failing_calls.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/integration/support/token_feed.h"
#include "tests/support/temp_folder.h"

namespace gdn::ring_failure_test {
namespace {

constexpr RingOptions kRing{.entries = 4, .area_bytes = 1 << 16};

int OpenDescriptors() {
  DIR* const folder = opendir("/proc/self/fd");
  int count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

class RingFailure : public testing::Test {
 protected:
  GdnServerOptions Options() const {
    GdnServerOptions options;
    options.models = TokenFeed::Models();
    options.shared_memory.directory = folder_.path();
    return options;
  }
  v1::DecodeRequest Next() { return feed_.Decode({"a"}, TokenRange{tokens_++, 1}); }

  const TempFolder folder_;
  const TokenFeed feed_ = TokenFeed::Operator(1);
  int64_t tokens_ = 0;
};

TEST_F(RingFailure, OfEachCallOfAnOpeningLeavesAClientThatWorks) {
  TestServer server(Options());
  const Caller caller(server);
  ASSERT_TRUE(feed_.Create(caller, "a").ok());
  const auto held = [&] { return caller.Info().reply.shared_memory_bytes(); };
  {  // what is made at the first opening is there
    Client client(server.channel());
    ASSERT_TRUE(client.OpenRing(kRing).ok());
    ASSERT_TRUE(client.Decode(Next()).ok());
  }
  ASSERT_TRUE(WaitUntil([&] { return held() == 0; }, "the first ring to be given back"));
  const int descriptors = OpenDescriptors();
  std::string list;
  // Client and server make their calls at the same time, so each name is counted for itself.
  for (const std::string name : {"memfd_create", "posix_fallocate", "fcntl", "eventfd", "mmap", "epoll_ctl", "socket",
                                 "connect", "accept4", "sendmsg", "recvmsg", "calloc"}) {
    SCOPED_TRACE(name);
    int64_t failed = 0;
    for (;; ++failed) {
      SCOPED_TRACE(failed);
      Client client(server.channel());
      FailingCalls::Fail(failed, name);
      const absl::Status opened = client.OpenRing(kRing, {.timeout = absl::Seconds(10), .affinity = ""});
      if (!FailingCalls::Stop().has_value()) {
        EXPECT_TRUE(opened.ok()) << opened;
        break;
      }
      EXPECT_EQ(opened.message().find(std::strerror(EAGAIN)), std::string::npos)
          << "the client waited for a reply that does not come: " << opened;
      EXPECT_EQ(opened.ok(), name == "accept4") << opened;  // which the server does again
      EXPECT_EQ(client.UsesRing(), opened.ok());
      if (!opened.ok()) {
        EXPECT_TRUE(opened.code() == absl::StatusCode::kResourceExhausted ||
                    opened.code() == absl::StatusCode::kUnimplemented)
            << opened;
        EXPECT_NE(opened.message().find("send steps in messages"), std::string::npos) << opened;
      }
      const auto reply = client.Decode(Next());
      EXPECT_TRUE(reply.ok()) << reply.status();
      EXPECT_EQ(client.OpenRing(kRing), absl::OkStatus()) << "the next opening";
      EXPECT_TRUE(client.Decode(Next()).ok());
      EXPECT_TRUE(client.UsesRing());
      EXPECT_EQ(caller.TokenCount("a", 0), tokens_) << "a step was lost or applied twice";
    }
    EXPECT_GT(failed, 0) << "was not tried";
    list += " " + name + " x" + std::to_string(failed);
  }
  EXPECT_TRUE(WaitUntil([&] { return held() == 0; }, "all rings to be given back"));
  EXPECT_TRUE(WaitUntil([&] { return OpenDescriptors() <= descriptors; }, "all descriptors to be closed"));
  std::printf("calls of an opening that failed in turn:%s\n", list.c_str());
}

TEST_F(RingFailure, OfTheMemoryForALongReplyLosesNoToken) {
  TestServer server(Options());
  const Caller caller(server);
  ASSERT_TRUE(caller.Create("a", "next").ok());
  Client client(server.channel());
  ASSERT_TRUE(client.OpenRing(kRing).ok());
  // F32 outputs of BF16 inputs are twice as long as the client expects, so it fetches a part of them.
  v1::PrefillRequest prompt = WithId(PrefillOf("a", /*layer=*/0, RandomTokens(150, 5), v1::DTYPE_BF16), "once");
  prompt.set_output_dtype(v1::DTYPE_F32);
  FailingCalls::Fail(0, "malloc");
  const auto reply = client.Prefill(prompt);
  ASSERT_EQ(FailingCalls::Stop(), "malloc") << "the reply was not fetched";
  EXPECT_EQ(reply.status().code(), absl::StatusCode::kResourceExhausted) << reply.status();
  const auto again = client.Prefill(prompt);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->output().data().size(), 150u * 64 * sizeof(float));
  EXPECT_EQ(caller.TokenCount("a", 0), 150) << "the step was applied again";
  EXPECT_TRUE(client.UsesRing());
}

TEST_F(RingFailure, OfEachCallOfAStartIsTold) {
  const int descriptors = OpenDescriptors();
  std::string list;
  for (int64_t number = 0;; ++number) {
    FailingCalls::Fail(number);
    const auto rings = Rings::Start(folder_.path(), absl::ZeroDuration());
    const std::optional<std::string> name = FailingCalls::Stop();
    if (!name.has_value()) {
      EXPECT_TRUE(rings.ok()) << rings.status();
      break;
    }
    list += " " + *name;
    EXPECT_FALSE(rings.ok()) << *name;
    EXPECT_EQ(OpenDescriptors(), descriptors) << *name;
    EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << *name << " leaves the socket";
  }
  std::printf("calls of a start that failed in turn:%s\n", list.c_str());
  for (const char* name : {"socket", "eventfd", "epoll_create1", "epoll_ctl", "thread"}) {
    EXPECT_NE(list.find(name), std::string::npos) << name << " was not tried";
  }
}

}  // namespace
}  // namespace gdn::ring_failure_test
