// Memory: each call at its most absurd, alone and 60 at once, takes no more than the server's budgets and a constant
// that is stated beforehand. Docs: reliability.md has the table that this prints.
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/string_cat.h"
#include "gdn/v1/service.grpc.pb.h"
#include "tests/soak/process_figures.h"
#include "tests/support/assert_ok.h"
#include "tests/support/temp_folder.h"
#include "tools/common/restartable_server.h"

namespace gdn::bounded_memory_test {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kDeviceBytes = 192 * kMiB, kCallBytes = 64 * kMiB, kCopyBytes = 32 * kMiB, kReplyBytes = 8 * kMiB;
// gRPC's buffers hold what the service has not seen yet. They are larger than kCallBytes, or that would not be reached.
constexpr int64_t kTransportBytes = 128 * kMiB;
// Beside the budgets: code, threads' scratch and the heap's slack.
constexpr int64_t kConstant = 96 * kMiB;
constexpr int kAtOnce = 60;

// An operator whose layer has a state of 4 GiB, and one whose layer has 3 KiB.
void SetAbsurd(v1::OperatorSpec* spec) {
  spec->set_key_heads(1024);
  spec->set_value_heads(1024);
  spec->set_key_dim(1024);
  spec->set_value_dim(1024);
  spec->set_layer_count(1024);
}
void SetSmall(v1::OperatorSpec* spec) {
  spec->set_key_heads(1);
  spec->set_value_heads(1);
  spec->set_key_dim(8);
  spec->set_value_dim(8);
  spec->set_layer_count(1024);
}

// Tensors of so many tokens of a small operator's layer, without data.
void SetTokens(int64_t tokens, v1::DeltaRuleInput& input) {
  const auto set = [](v1::Tensor& tensor, const std::vector<int64_t>& shape) {
    tensor.set_dtype(v1::DTYPE_F32);
    tensor.mutable_shape()->Assign(shape.begin(), shape.end());
  };
  for (v1::Tensor* const tensor : {input.mutable_q(), input.mutable_k(), input.mutable_v()})
    set(*tensor, {tokens, 1, 8});
  for (v1::Tensor* const tensor : {input.mutable_g(), input.mutable_beta()}) set(*tensor, {tokens, 1});
}

class BoundedMemory : public ::testing::Test {
 protected:
  using Call = std::function<grpc::Status(v1::GdnService::Stub&, grpc::ClientContext&)>;

  BoundedMemory()
      : server_(GDN_SERVER,
                {"--backend=cpu", "--threads=1", StrCat("--device-state-bytes=", kDeviceBytes), "--host-state-bytes=0",
                 StrCat("--call-bytes=", kCallBytes), StrCat("--copy-bytes=", kCopyBytes),
                 StrCat("--stored-reply-bytes=", kReplyBytes), "--prefix-cache-bytes=0", "--max-message-bytes=8MiB",
                 StrCat("--transport-bytes=", kTransportBytes)},
                folder_.path(), "bounded") {}

  void SetUp() override {
    // The server gets two processors: its heap has a part for each, which keeps some of what it has freed.
    const std::vector<int> processors = Processors();
    ASSERT_TRUE(ThisThreadRunsOn({processors.front(), processors.back()}).ok());
    const absl::Status started = server_.Start();
    ASSERT_TRUE(started.ok()) << started;
    channel_ = grpc::CreateChannel(server_.target(), grpc::InsecureChannelCredentials());
    stub_ = v1::GdnService::NewStub(channel_);
    for (int i = 0; i < 40; ++i) {
      v1::CreateSessionRequest request;
      request.set_session_id(StrCat("small-", i));
      SetSmall(request.mutable_operator_());
      grpc::ClientContext context;
      v1::CreateSessionResponse response;
      const grpc::Status made = stub_->CreateSession(&context, request, &response);
      ASSERT_TRUE(made.ok()) << made.error_message();
    }
  }

  // Makes the call `count` times at once, and compares the server's peak since then with its budgets.
  void Measure(const std::string& name, int count, const Call& call) {
    std::ofstream("/proc/" + std::to_string(server_.pid()) + "/clear_refs") << "5";  // the peak begins anew
    std::vector<std::thread> callers;
    std::array<std::atomic<int>, 17> codes = {};
    for (int i = 0; i < count; ++i) {
      callers.emplace_back([&] {
        grpc::ClientContext context;
        context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(2));
        ++codes[static_cast<size_t>(call(*stub_, context).error_code())];
      });
    }
    for (std::thread& caller : callers) caller.join();
    GDN_ASSERT_OK_AND_ASSIGN(const ProcessFigures figures, ReadProcess(server_.pid()));
    std::string answers;
    for (size_t code = 0; code < codes.size(); ++code) {
      if (codes[code] > 0) answers += StrCat(" ", codes[code].load(), " of code ", code);
    }
    std::cout << "| " << name << " | " << count << " | " << figures.peak_resident_bytes / kMiB << " MiB |" << answers
              << " |\n";
    EXPECT_EQ(codes[grpc::StatusCode::DEADLINE_EXCEEDED], 0) << name;
    EXPECT_EQ(codes[grpc::StatusCode::UNIMPLEMENTED], 0) << name << ": an exception of the server's";
    EXPECT_EQ(codes[grpc::StatusCode::UNKNOWN], 0) << name;
    EXPECT_LE(figures.peak_resident_bytes,
              kDeviceBytes + kCallBytes + kCopyBytes + kReplyBytes + kTransportBytes + kConstant)
        << name;
  }
  void Measure(const std::string& name, const Call& call) {
    Measure(name, 1, call);
    Measure(name, kAtOnce, call);
  }

  const TempFolder folder_;
  RestartableServer server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::GdnService::Stub> stub_;
};

template <typename Request, typename Response>
auto Unary(grpc::Status (v1::GdnService::Stub::*method)(grpc::ClientContext*, const Request&, Response*),
           const Request& request) {
  return [method, request](v1::GdnService::Stub& stub, grpc::ClientContext& context) {
    Response response;
    return (stub.*method)(&context, request, &response);
  };
}

// Reads a stream of replies to its end.
template <typename Request, typename Response>
auto Streaming(std::unique_ptr<grpc::ClientReader<Response>> (v1::GdnService::Stub::*method)(grpc::ClientContext*,
                                                                                             const Request&),
               const Request& request) {
  return [method, request](v1::GdnService::Stub& stub, grpc::ClientContext& context) {
    const auto reader = (stub.*method)(&context, request);
    for (Response response; reader->Read(&response);) continue;
    return reader->Finish();
  };
}

// A safetensors file of so many tensors without a byte.
std::string FileOfTensors(int count) {
  std::string header = "{";
  for (int i = 0; i < count; ++i) {
    header += StrCat(i == 0 ? "" : ",", "\"t", i, R"(":{"dtype":"F32","shape":[0],"data_offsets":[0,0]})");
  }
  header += "}";
  while (header.size() % 8 != 0) header.push_back(' ');
  std::string file(sizeof(uint64_t), '\0');
  const uint64_t size = header.size();
  std::memcpy(file.data(), &size, sizeof(size));
  return file + header;
}

auto Importing(const std::string& file) {
  return [file](v1::GdnService::Stub& stub, grpc::ClientContext& context) {
    v1::ImportStateResponse response;
    const auto writer = stub.ImportState(&context, &response);
    v1::ImportStateRequest request;
    SetSmall(request.mutable_target()->mutable_operator_());
    request.mutable_target()->set_total_bytes(static_cast<int64_t>(file.size()));
    bool open = writer->Write(request);
    constexpr size_t kPiece = size_t{1} << 20;
    for (size_t at = 0; open && at < file.size(); at += kPiece) {
      request.set_data(file.substr(at, kPiece));
      open = writer->Write(request);
    }
    writer->WritesDone();
    return writer->Finish();
  };
}

TEST_F(BoundedMemory, NoCallTakesMoreThanTheBudgets) {
  using Stub = v1::GdnService::Stub;
  v1::CreateSessionRequest absurd;
  SetAbsurd(absurd.mutable_operator_());
  Measure("CreateSession of 4 TiB", Unary(&Stub::CreateSession, absurd));
  for (int layer = 0; layer < 1024; ++layer) absurd.add_initial_states()->set_layer(layer);
  Measure("CreateSession of 4 TiB, initial states without tensors", Unary(&Stub::CreateSession, absurd));
  absurd.mutable_operator_()->set_layer_count(1);
  absurd.mutable_initial_states()->DeleteSubrange(1, 1023);
  Measure("CreateSession of 4 GiB, an initial state without tensors", Unary(&Stub::CreateSession, absurd));

  v1::ListSessionsRequest list;
  list.set_page_size(1000);
  Measure("ListSessions, 40 of 1,024 layers", Unary(&Stub::ListSessions, list));
  v1::GetSessionRequest get;
  get.set_name("sessions/small-1");
  Measure("GetSession of 1,024 layers", Unary(&Stub::GetSession, get));
  get.set_name("sessions/" + std::string(1 << 20, 'x'));
  Measure("GetSession of a name of 1 MiB", Unary(&Stub::GetSession, get));
  Measure("GetServerInfo", Unary(&Stub::GetServerInfo, v1::GetServerInfoRequest()));
  Measure("ListModels", Unary(&Stub::ListModels, v1::ListModelsRequest()));
  Measure("GetMetrics", Unary(&Stub::GetMetrics, v1::GetMetricsRequest()));

  v1::ForkSessionRequest fork;
  fork.set_name("sessions/small-1");
  for (int i = 0; i < 500'000; ++i) fork.add_session_ids("");
  Measure("ForkSession into 500,000", Unary(&Stub::ForkSession, fork));
  v1::ExportStateRequest exported;
  exported.set_name("sessions/small-2");
  Measure("ExportState of 1,024 layers", Streaming(&Stub::ExportState, exported));
  v1::PrefetchSessionsRequest prefetch;
  for (int i = 0; i < 300'000; ++i) prefetch.add_names("sessions/small-3");
  Measure("PrefetchSessions of 300,000 names", Unary(&Stub::PrefetchSessions, prefetch));
  v1::AcceptTokensRequest accept;
  for (int i = 0; i < 300'000; ++i) accept.add_acceptances()->set_session("sessions/small-3");
  Measure("AcceptTokens of 300,000 sessions", Unary(&Stub::AcceptTokens, accept));
  v1::DecodeRequest decode;
  for (int i = 0; i < 300'000; ++i) decode.add_sessions("sessions/small-3");
  Measure("Decode of 300,000 sessions", Unary(&Stub::Decode, decode));
  decode.clear_sessions();
  decode.add_sessions("sessions/small-3");
  for (int i = 0; i < 4'000'000; ++i) decode.add_expected_token_counts(1);
  Measure("Decode of 4,000,000 counts", Unary(&Stub::Decode, decode));
  v1::PrefillRequest prefill;
  prefill.set_session(std::string(7 << 20, 'x'));
  Measure("Prefill of a name of 7 MiB", Unary(&Stub::Prefill, prefill));
  v1::StreamDecodeRequest streamed;
  *streamed.mutable_step() = decode;
  Measure("StreamDecode of 4,000,000 counts", [streamed](Stub& stub, grpc::ClientContext& context) {
    const auto stream = stub.StreamDecode(&context);
    v1::StreamDecodeResponse reply;
    while (stream->Write(streamed) && stream->Read(&reply)) break;
    stream->WritesDone();
    while (stream->Read(&reply)) continue;
    return stream->Finish();
  });
  v1::StepRequest step;
  for (int i = 0; i < 100'000; ++i) {
    v1::StepRow& row = *step.add_rows();
    row.set_session("sessions/small-3");
    row.set_kind(v1::STEP_KIND_DECODE);
  }
  Measure("Step of 100,000 rows", Unary(&Stub::Step, step));
  step.mutable_rows()->DeleteSubrange(1, step.rows_size() - 1);
  v1::StepRow& row = *step.mutable_rows(0);
  step.set_request_id("id");
  SetTokens(0, *step.mutable_delta_rule());
  row.mutable_accept_before()->set_accepted_tokens(std::numeric_limits<int32_t>::max());
  Measure("Step of an acceptance of 2,147,483,647 tokens", Unary(&Stub::Step, step));
  row.clear_accept_before();
  row.set_kind(v1::STEP_KIND_PREFILL);
  row.set_token_count(std::numeric_limits<int32_t>::max());
  SetTokens(std::numeric_limits<int32_t>::max(), *step.mutable_delta_rule());
  Measure("Step of 2,147,483,647 tokens without data", Unary(&Stub::Step, step));
  row.set_token_count(0);
  SetTokens(0, *step.mutable_delta_rule());
  for (int i = 0; i < 2'000'000; ++i) row.add_draft_parents(i % 100);
  Measure("Step of 2,000,000 parents", Unary(&Stub::Step, step));
  row.clear_draft_parents();
  for (int i = 0; i < 2'000'000; ++i) row.mutable_accept_before()->add_path(i % 100);
  Measure("Step of a path of 2,000,000 tokens", Unary(&Stub::Step, step));
  v1::StreamStepRequest steps;
  *steps.mutable_step() = step;
  Measure("StreamStep of a path of 2,000,000 tokens", [steps](Stub& stub, grpc::ClientContext& context) {
    const auto stream = stub.StreamStep(&context);
    v1::StreamStepResponse reply;
    while (stream->Write(steps) && stream->Read(&reply)) break;
    stream->WritesDone();
    while (stream->Read(&reply)) continue;
    return stream->Finish();
  });
  v1::WatchStateRequest watch;
  watch.set_name("sessions/small-2");
  watch.set_every_tokens(1);
  Measure("WatchState of 1,024 layers", [watch](Stub& stub, grpc::ClientContext& context) {
    const auto reader = stub.WatchState(&context, watch);
    v1::WatchStateResponse piece;
    reader->Read(&piece);
    context.TryCancel();
    while (reader->Read(&piece)) continue;
    return reader->Finish();
  });
  Measure("ImportState of a header of 100,000 tensors", Importing(FileOfTensors(100'000)));
}

}  // namespace
}  // namespace gdn::bounded_memory_test
