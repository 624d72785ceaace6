#include "client/cpp/shared_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "base/error.h"
#include "client/cpp/client.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/server_builder.h"
#include "tests/client/cpp/mock_stub.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"

namespace gdn::shared_memory_test {
namespace {

constexpr char kName[] = "gdn-shm-0123456789abcdef0123456789abcdef";
constexpr int64_t kBytes = 1000;

CallOptions Within(absl::Duration timeout) {
  CallOptions call;
  call.timeout = timeout;
  return call;
}

// A server that says of its region what the test wants.
class ToldService final : public v1::GdnService::Service {
 public:
  grpc::Status ShareMemory(grpc::ServerContext* context, const v1::ShareMemoryRequest* request,
                           grpc::ServerWriter<v1::ShareMemoryResponse>* writer) override {
    asked_ = request->bytes();
    v1::ShareMemoryResponse response;
    *response.mutable_region() = region;
    if (!region.name().empty()) writer->Write(response);
    while (!ends && !context->IsCancelled()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    return {grpc::StatusCode::UNAVAILABLE, "gone"};
  }

  // Puts the input where the output is to be.
  grpc::Status Step(grpc::ServerContext*, const v1::StepRequest* request, v1::StepResponse* response) override {
    const v1::Tensor& x = request->hidden_states().hidden_states();
    std::string file = ReadFile(region.path());
    const auto from = static_cast<size_t>(x.shared().offset());
    const auto bytes = static_cast<size_t>(x.shared().bytes());
    file.replace(static_cast<size_t>(request->output_shared().offset()), bytes, file.substr(from, bytes));
    std::fstream(region.path(), std::ios::binary | std::ios::in | std::ios::out) << file;  // the file stays mapped
    *response->mutable_output() = x;
    *response->mutable_output()->mutable_shared() = request->output_shared();
    return grpc::Status::OK;
  }

  v1::SharedRegion region;  // nameless: the server never answers
  std::atomic<bool> ends{false};
  std::atomic<int64_t> asked_{0};
};

class SharedMemoryClient : public testing::Test {
 protected:
  void SetUp() override {
    WriteFile(Path(kName), std::string(kBytes, '\0'));
    service_.region.set_name(kName);
    service_.region.set_path(Path(kName));
    service_.region.set_bytes(kBytes);
    grpc::ServerBuilder builder;
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<Client>(server_->InProcessChannel({}));
  }
  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  absl::Status Refusal() { return client_->ShareMemory(kBytes).status(); }

  const TempFolder folder_;
  ToldService service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Client> client_;
};

TEST_F(SharedMemoryClient, SeesTheServersFile) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto memory, client_->ShareMemory(kBytes));
  EXPECT_EQ(service_.asked_, kBytes);
  EXPECT_EQ(memory->region(), kName);
  EXPECT_EQ(memory->bytes().size(), static_cast<size_t>(kBytes));
  memory->bytes()[7] = 'x';
  EXPECT_EQ(ReadFile(Path(kName))[7], 'x');
  EXPECT_TRUE(memory->status().ok());
}

TEST_F(SharedMemoryClient, DoesNotMapWhatIsNoRegion) {
  const auto expect_refused = [this](const char* what) {
    ExpectError(Refusal(), absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered, what);
  };
  service_.region.set_bytes(kBytes + 1);
  expect_refused("another size");
  service_.region.set_bytes(kBytes);
  WriteFile(Path("notes"), std::string(kBytes, 'n'));
  service_.region.set_path(Path("notes"));
  expect_refused("a file of another name");
  service_.region.set_name("notes");
  expect_refused("a name that is no region's");
  service_.region.set_name(kName);
  service_.region.set_path(Path("none") + "/" + kName);
  expect_refused("a file that is not there");
  std::filesystem::create_directory(Path("links"));
  std::filesystem::create_symlink(Path("notes"), Path("links") + "/" + kName);
  service_.region.set_path(Path("links") + "/" + kName);
  expect_refused("a link to another file");
  EXPECT_EQ(ReadFile(Path("notes")), std::string(kBytes, 'n'));
}

TEST_F(SharedMemoryClient, WaitsNoLongerThanItsTimeout) {
  service_.region.clear_name();
  EXPECT_EQ(client_->ShareMemory(kBytes, Within(absl::Milliseconds(20))).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(SharedMemoryClient, HearsOfTheEnd) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto memory, client_->ShareMemory(kBytes, Within(absl::Seconds(30))));
  service_.ends = true;
  while (memory->status().ok()) std::this_thread::yield();
  EXPECT_EQ(memory->status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(SharedMemoryClient, GivesOutItsPartsOnce) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto memory, client_->ShareMemory(kBytes));
  int64_t end = 0;
  for (const int64_t bytes : {1, 64, 65, 0, 700}) {
    GDN_ASSERT_OK_AND_ASSIGN(const v1::SharedRange range, memory->Allocate(bytes));
    EXPECT_EQ(range.offset() % 64, 0);
    EXPECT_GE(range.offset(), end);
    EXPECT_EQ(range.bytes(), bytes);
    end = range.offset() + bytes;
  }
  EXPECT_EQ(memory->Allocate(200).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(memory->Allocate(-1).status().code(), absl::StatusCode::kResourceExhausted);
  memory->Reset();
  EXPECT_TRUE(memory->Allocate(kBytes).ok());
  EXPECT_TRUE(memory->Allocate(0).ok());
  EXPECT_EQ(memory->Allocate(1).status().code(), absl::StatusCode::kResourceExhausted);
  for (const auto& [offset, bytes] :
       {std::pair<int64_t, int64_t>{-1, 1}, {0, kBytes + 1}, {1, kBytes}, {0, -1}, {1, INT64_MAX}, {INT64_MAX, 1}}) {
    ExpectError(memory->RangeAt(offset, bytes).status(), absl::StatusCode::kInvalidArgument,
                reason::kInvalidSharedRange);
  }
}

TEST_F(SharedMemoryClient, HoldsTensors) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto memory, client_->ShareMemory(kBytes));
  GDN_ASSERT_OK_AND_ASSIGN(const v1::Tensor sent, MakeTensor({1, 2, 3, 4, 5, 6}, {2, 3}, DType::kBF16));
  v1::Tensor tensor;
  ASSERT_TRUE(memory->AddTensor(ViewTensor(sent).value(), &tensor).ok());
  EXPECT_TRUE(tensor.data().empty());
  GDN_ASSERT_OK_AND_ASSIGN(const TensorView view, memory->View(tensor));
  EXPECT_EQ(view.dtype, DType::kBF16);
  EXPECT_EQ(view.shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(view.data, sent.data());
  EXPECT_EQ(memory->View(sent).value().data, sent.data()) << "one that is in the message";

  v1::Tensor bad = tensor;
  bad.mutable_shared()->set_region("another");
  ExpectError(memory->View(bad).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange);
  bad = tensor;
  bad.mutable_shared()->set_bytes(11);
  ExpectError(memory->View(bad).status(), absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData);
  EXPECT_FALSE(memory->AddTensor(DType::kF32, {-1}, &bad).ok());
  EXPECT_FALSE(memory->AddTensor({.dtype = DType::kF32, .shape = {2}, .data = "short"}, &bad).ok());
}

TEST_F(SharedMemoryClient, HoldsTheTensorsOfAStep) {
  GDN_ASSERT_OK_AND_ASSIGN(const auto memory, client_->ShareMemory(kBytes));
  v1::StepRequest step;
  step.add_rows()->set_token_count(3);
  GDN_ASSERT_OK_AND_ASSIGN(
      const absl::Span<char> x,
      memory->AddTensor(DType::kF32, {3, 4}, step.mutable_hidden_states()->mutable_hidden_states()));
  std::fill(x.begin(), x.end(), 'x');
  GDN_ASSERT_OK_AND_ASSIGN(*step.mutable_output_shared(), memory->Allocate(3 * 4 * 4));
  GDN_ASSERT_OK_AND_ASSIGN(const v1::StepResponse reply, client_->Step(step));
  GDN_ASSERT_OK_AND_ASSIGN(const TensorView y, memory->View(reply.output()));
  EXPECT_EQ(y.data, std::string(3 * 4 * 4, 'x'));
  EXPECT_EQ(y.shape, (std::vector<int64_t>{3, 4}));
}

TEST(SharedMemoryWithoutChannel, IsRefused) {
  Client client(std::make_unique<testing::NiceMock<v1::MockGdnServiceStub>>());
  EXPECT_EQ(client.ShareMemory(1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST(SharedMemoryOfAnOlderServer, IsUnimplemented) {
  v1::GdnService::Service old;
  grpc::ServerBuilder builder;
  builder.RegisterService(&old);
  const auto server = builder.BuildAndStart();
  Client client(server->InProcessChannel({}));
  EXPECT_EQ(client.ShareMemory(1).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace gdn::shared_memory_test
