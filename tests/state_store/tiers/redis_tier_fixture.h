// A Redis server and a RedisTier on it, for a test. The test is skipped if redis-server is not installed.
//
//   Start({.append_only = true});
//   ASSERT_TRUE(tier_->Store(key, MakeImage(session, memory_.host)).ok());
//   server_->Kill();
#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "gtest/gtest.h"
#include "state_store/tiers/redis/redis_tier.h"
#include "tests/state_store/test_image.h"
#include "tests/state_store/tiers/redis_server_fixture.h"

namespace gdn {

class RedisTierFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!RedisServer::Installed()) GTEST_SKIP() << "redis-server is not installed";
  }

  void Start(RedisServerOptions options = {}) {
    server_.emplace(std::move(options));
    server_->Start();
    tier_ = Connect(*server_);
    EXPECT_TRUE(tier_->NextIncarnation().ok());
  }
  // Makes a tier that has not taken its prefix, so that it can only read.
  std::unique_ptr<RedisTier> Connect(const RedisServer& server, RedisTierOptions options = {}) {
    options.endpoint = server.endpoint();
    options.chunk_bytes = 1024;   // states of tests are small
    options.window_bytes = 4096;  // small, so that states need several windows
    absl::StatusOr<std::unique_ptr<RedisTier>> tier = RedisTier::Make(std::move(options), memory_.host);
    EXPECT_TRUE(tier.ok()) << tier.status();
    return *std::move(tier);
  }

  TestMemory memory_;
  std::optional<RedisServer> server_;
  std::unique_ptr<RedisTier> tier_;
};

}  // namespace gdn
