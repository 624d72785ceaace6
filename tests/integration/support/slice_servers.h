// Servers that each have some of a model's value heads, with a client for each; and joins of their sessions' files.
//
// Thread safety: for one thread. Ownership: owns the servers and the clients.
//
//   SliceServers servers(GoldenPath("qwen3_next_1"), kHalves);
//   GDN_ASSERT_OK_AND_ASSIGN(auto sliced, servers.Create("s"));
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/files/safetensors.h"
#include "client/cpp/sliced_session.h"
#include "state_store/state_file/head_slices.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/compare.h"

namespace gdn {

inline const std::vector<HeadSlice> kHalves = {{.first = 0, .count = 2, .total = 4},
                                               {.first = 2, .count = 2, .total = 4}};

// A server for each slice, and a client of each.
class SliceServers {
 public:
  SliceServers(const std::string& path, const std::vector<HeadSlice>& slices) {
    for (const HeadSlice& heads : slices) {
      servers_.emplace_back(GdnServerOptions{.models = {{"m", path}}, .load = {.heads = heads}});
      clients_.push_back(std::make_unique<Client>(servers_.back().channel()));
    }
  }

  TestServer& server(size_t i) { return servers_[i]; }
  std::vector<Client*> clients() const {
    std::vector<Client*> all;
    for (const auto& client : clients_) all.push_back(client.get());
    return all;
  }
  absl::StatusOr<std::unique_ptr<SlicedSession>> Create(const std::string& id, DurableSessionOptions options = {}) {
    return SlicedSession::Create(clients(), RequestOf(id), options);
  }
  static v1::CreateSessionRequest RequestOf(const std::string& id) {
    v1::CreateSessionRequest request;
    request.set_session_id(id);
    request.set_model("models/m");
    return request;
  }
  std::vector<std::string> Export(const std::string& id) {
    std::vector<std::string> files;
    for (TestServer& server : servers_) {
      const auto exported = Caller(server).Export(id);
      EXPECT_TRUE(exported.ok()) << exported.status.error_message();
      files.push_back(exported.reply);
    }
    return files;
  }

 private:
  std::deque<TestServer> servers_;
  std::vector<std::unique_ptr<Client>> clients_;
};

inline std::string JoinFiles(const std::vector<std::string>& files) {
  const std::vector<std::string_view> views(files.begin(), files.end());
  auto joined = JoinStateFiles(views);
  EXPECT_TRUE(joined.ok()) << joined.status();
  return joined.ok() ? *std::move(joined) : "";
}

// Returns the largest relative norm error over the float tensors of two files, which must have the same tensors.
inline double WorstStateError(const std::string& a, const std::string& b) {
  const SafetensorsFile file_a = SafetensorsFile::Parse(a).value();
  const SafetensorsFile file_b = SafetensorsFile::Parse(b).value();
  double worst = 0;
  size_t count = 0;
  for (const auto& [name, entry] : file_b.entries()) {
    if (name.ends_with(".reply")) continue;
    ++count;
    const auto values = file_a.Floats(name);
    EXPECT_TRUE(values.ok()) << name;
    if (values.ok()) worst = std::max(worst, RelativeNormError(*values, *file_b.Floats(name)));
  }
  EXPECT_GT(count, 0u);
  return worst;
}

}  // namespace gdn
