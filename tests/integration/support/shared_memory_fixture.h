// Fixture for shared memory: a server with shared memory in the test's own folder, and requests with tensors in it.
//
//   class SharedMemorySteps : public SharedMemoryFixture {};
//   ASSERT_REPLY(const auto reply, caller_.Decode(InShared(DecodeOf({"a"}, 0, {token}))));
//   EXPECT_EQ(OutputOf(reply.output()), expected);
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <vector>

#include "client/cpp/client.h"
#include "client/cpp/tensor_codec.h"
#include "tests/integration/support/service_helpers.h"
#include "tests/support/temp_folder.h"

namespace gdn {

class SharedMemoryFixture : public testing::Test {
 protected:
  static constexpr char kSet[] = "qwen3_next_1";
  static constexpr int64_t kRegionBytes = 256 << 10;

  SharedMemoryOptions Options() const {
    return {.directory = folder_.path(), .bytes = 4 << 20, .bytes_per_principal = 1 << 20};
  }

  // Returns the input tensors of a request.
  template <typename Request>
  static std::vector<v1::Tensor*> TensorsOf(Request& request) {
    if (request.has_hidden_states()) return {request.mutable_hidden_states()->mutable_hidden_states()};
    if (request.has_projected()) {
      v1::ProjectedInput& in = *request.mutable_projected();
      return {in.mutable_z(), in.mutable_mixed_qkv(), in.mutable_b(), in.mutable_a()};
    }
    v1::DeltaRuleInput& in = *request.mutable_delta_rule();
    return {in.mutable_v(), in.mutable_q(), in.mutable_k(), in.mutable_g(), in.mutable_beta()};
  }

  // Returns the request with its tensors in shared memory, and space there for its output, which has the size of the
  // first of TensorsOf. Overwrites earlier contents.
  template <typename Request>
  Request InShared(Request request) {
    memory_->Reset();
    for (v1::Tensor* tensor : TensorsOf(request)) {
      v1::Tensor moved;
      EXPECT_TRUE(memory_->AddTensor(ViewTensor(*tensor).value(), &moved).ok());
      *tensor = moved;
    }
    *request.mutable_output_shared() = memory_->Allocate(TensorsOf(request).front()->shared().bytes()).value();
    return request;
  }
  // Returns the bytes of an output, which must be in shared memory.
  std::string OutputOf(const v1::Tensor& output) const {
    EXPECT_TRUE(output.has_shared() && output.data().empty()) << output.ShortDebugString();
    return std::string(memory_->View(output).value().data);
  }
  // Returns the bytes of a range of the region, for the test to change.
  absl::Span<char> BytesOf(const v1::SharedRange& range) const { return memory_->BytesOf(range).value(); }

  std::future<Outcome<v1::DecodeResponse>> Later(const v1::DecodeRequest& request) const {
    return std::async(std::launch::async, [this, request] { return caller_.Decode(request); });
  }

  std::string RegionFile() const { return folder_.path() + "/" + memory_->region(); }
  // Returns the number of regions' files. The rings' socket is there too.
  int FilesThere() const {
    int count = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.path().filename().string().starts_with(kSharedRegionPrefix)) ++count;
    }
    return count;
  }

  const TempFolder folder_;
  TestServer server_{{.models = {{"next", GoldenPath(kSet)}}, .shared_memory = Options()}};
  const Caller caller_{server_};
  Client client_{server_.channel()};
  std::unique_ptr<SharedMemory> memory_ = client_.ShareMemory(kRegionBytes).value();
  const Tokens inputs_ = GoldenInputs(kSet, 0);
};

}  // namespace gdn
