// Steps on the wire mean what protobuf says they mean, however their bytes are cut and whatever is in them.
#include "server/rpc/steps/step_wire.h"

#include <grpcpp/support/slice.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "gtest/gtest.h"
#include "kernels/null/null_backend.h"

namespace gdn::step_wire_test {
namespace {

using Random = std::mt19937_64;

absl::Status MayParseAll(int64_t /*bytes*/) { return absl::OkStatus(); }

int64_t Below(Random& random, int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); }

std::string Bytes(Random& random, int64_t size) {
  std::string bytes(static_cast<size_t>(size), '\0');
  for (char& c : bytes) c = static_cast<char>(random());
  return bytes;
}

void Fill(Random& random, v1::Tensor* tensor) {
  tensor->set_dtype(static_cast<v1::DType>(Below(random, 5)));
  for (int64_t dims = Below(random, 4); dims > 0; --dims) tensor->add_shape(static_cast<int64_t>(random() >> 20));
  if (Below(random, 4) > 0) tensor->set_data(Bytes(random, Below(random, 300)));
  if (Below(random, 4) == 0) tensor->mutable_shared()->set_region("a region");
}

template <typename Step>
void FillInput(Random& random, Step* step) {
  switch (Below(random, 4)) {
    case 0:
      Fill(random, step->mutable_hidden_states()->mutable_hidden_states());
      break;
    case 1:
      Fill(random, step->mutable_projected()->mutable_mixed_qkv());
      Fill(random, step->mutable_projected()->mutable_z());
      if (Below(random, 2) == 0) Fill(random, step->mutable_projected()->mutable_b());
      Fill(random, step->mutable_projected()->mutable_a());
      break;
    case 2:
      Fill(random, step->mutable_delta_rule()->mutable_q());
      Fill(random, step->mutable_delta_rule()->mutable_k());
      Fill(random, step->mutable_delta_rule()->mutable_v());
      if (Below(random, 2) == 0) step->mutable_delta_rule()->mutable_g();
      Fill(random, step->mutable_delta_rule()->mutable_beta());
      step->mutable_delta_rule()->set_scale(0.5f);
      break;
    default:
      break;
  }
  step->set_layer(static_cast<int32_t>(random()));
  if (Below(random, 2) == 0) step->set_request_id("id");
  step->set_output_dtype(v1::DTYPE_BF16);
}

void FillRequest(Random& random, v1::PrefillRequest* request) {
  FillInput(random, request);
  request->set_session("sessions/a");
  if (Below(random, 2) == 0) request->set_expected_token_count(static_cast<int64_t>(random()));
}
void FillRequest(Random& random, v1::DecodeRequest* request) {
  FillInput(random, request);
  for (int64_t rows = Below(random, 5); rows > 0; --rows) {
    request->add_sessions("sessions/a session with a rather long name");
    request->add_expected_token_counts(static_cast<int64_t>(random()));
    request->add_lengths(1);
  }
}
void FillRequest(Random& random, v1::StreamPrefillRequest* request) { FillRequest(random, request->mutable_segment()); }
void FillRequest(Random& random, v1::StreamDecodeRequest* request) { FillRequest(random, request->mutable_step()); }

template <typename Step>
std::vector<std::pair<v1::Tensor*, size_t>> TensorsOf(Step& step) {
  std::vector<std::pair<v1::Tensor*, size_t>> tensors;
  const auto add = [&](auto* input) {
    const auto* const descriptor = input->GetDescriptor();
    for (int i = 0; i < kMaxStepFields; ++i) {
      const auto* const field = descriptor->FindFieldByNumber(i + 1);
      if (field == nullptr || !input->GetReflection()->HasField(*input, field)) continue;
      tensors.emplace_back(static_cast<v1::Tensor*>(input->GetReflection()->MutableMessage(input, field)),
                           static_cast<size_t>(i));
    }
  };
  if (step.has_hidden_states()) add(step.mutable_hidden_states());
  if (step.has_projected()) add(step.mutable_projected());
  if (step.has_delta_rule()) add(step.mutable_delta_rule());
  return tensors;
}
std::vector<std::pair<v1::Tensor*, size_t>> TensorsOf(v1::StreamPrefillRequest& request) {
  if (!request.has_segment()) return {};
  return TensorsOf(*request.mutable_segment());
}
std::vector<std::pair<v1::Tensor*, size_t>> TensorsOf(v1::StreamDecodeRequest& request) {
  if (!request.has_step()) return {};
  return TensorsOf(*request.mutable_step());
}

// `bytes` as gRPC may receive them.
grpc::ByteBuffer Cut(Random& random, const std::string& bytes) {
  std::vector<grpc::Slice> slices;
  const int64_t longest = 1 + Below(random, 2 * static_cast<int64_t>(bytes.size()) + 1);
  for (size_t at = 0; at < bytes.size();) {
    const size_t size = std::min(bytes.size() - at, static_cast<size_t>(1 + Below(random, longest)));
    slices.emplace_back(bytes.data() + at, size);
    at += size;
  }
  return {slices.data(), slices.size()};
}

std::string Joined(grpc::ByteBuffer& wire) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(wire.Dump(&slices).ok());
  std::string bytes;
  for (const grpc::Slice& slice : slices) bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return bytes;
}

// Something that may have happened to a message.
std::string Damaged(Random& random, std::string bytes) {
  for (int64_t changes = 1 + Below(random, 3); changes > 0; --changes) {
    const auto size = static_cast<int64_t>(bytes.size());
    const auto at = static_cast<size_t>(Below(random, size + 1));
    const auto some = static_cast<size_t>(Below(random, 40));
    switch (Below(random, 6)) {
      case 0:
        if (at < bytes.size()) bytes[at] = static_cast<char>(random());
        break;
      case 1:
        if (at < bytes.size()) bytes[at] = static_cast<char>(bytes[at] ^ (1 << Below(random, 8)));
        break;
      case 2:
        bytes.insert(at, Bytes(random, static_cast<int64_t>(some)));
        break;
      case 3:
        bytes.erase(at, some);
        break;
      case 4:
        bytes.insert(at, bytes.substr(static_cast<size_t>(Below(random, size + 1)), some));
        break;
      default:
        bytes += bytes.substr(at);  // fields again
    }
  }
  return bytes;
}

template <typename Request>
class StepWireRequest : public testing::Test {
 protected:
  // Reads `bytes` both ways and compares. Whether they are a message.
  bool ReadsAsProtobufDoes(Random& random, const std::string& bytes) {
    Request expected;
    const bool is_message = expected.ParseFromString(bytes);
    grpc::ByteBuffer wire = Cut(random, bytes);
    Request request;
    const auto received = ReadStepRequest(wire, /*max_bytes=*/1 << 20, memory_, MayParseAll, request);
    EXPECT_EQ(received.ok(), is_message) << received.status();
    if (!received.ok() || !is_message) {
      EXPECT_EQ(ErrorReason(received.status()), reason::kMalformedMessage);
      return false;
    }
    EXPECT_EQ(received->message_bytes, static_cast<int64_t>(bytes.size()));
    EXPECT_EQ(wire.Length(), 0u);
    if (const TensorBytes* const data = received->bytes(); data != nullptr) {
      for (const auto& [tensor, i] : TensorsOf(request)) {
        EXPECT_TRUE(tensor->data().empty());
        EXPECT_EQ(reinterpret_cast<uintptr_t>((*data)[i].data()) % 64, 0u);
        tensor->set_data(std::string((*data)[i]));
      }
    }
    request.DiscardUnknownFields();
    expected.DiscardUnknownFields();
    EXPECT_EQ(request.SerializeAsString(), expected.SerializeAsString());
    return true;
  }

  const std::unique_ptr<Backend> backend_ = MakeNullBackend();
  HostBlockPool memory_{*backend_, /*keep_bytes=*/1 << 24};
};
using Requests =
    testing::Types<v1::PrefillRequest, v1::DecodeRequest, v1::StreamPrefillRequest, v1::StreamDecodeRequest>;
TYPED_TEST_SUITE(StepWireRequest, Requests);

TYPED_TEST(StepWireRequest, IsReadAsProtobufReadsIt) {
  for (uint64_t seed = 0; seed < 500; ++seed) {
    Random random(seed);
    TypeParam request;
    FillRequest(random, &request);
    EXPECT_TRUE(this->ReadsAsProtobufDoes(random, request.SerializeAsString())) << "seed " << seed;
    if (this->HasFailure()) return;
  }
}

TYPED_TEST(StepWireRequest, IsReadAsProtobufReadsItWhenDamaged) {
  int messages = 0;
  for (uint64_t seed = 0; seed < 4000; ++seed) {
    Random random(seed);
    TypeParam request;
    FillRequest(random, &request);
    messages += this->ReadsAsProtobufDoes(random, Damaged(random, request.SerializeAsString())) ? 1 : 0;
    ASSERT_FALSE(this->HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(messages, 400);
  EXPECT_LT(messages, 3600);
}

TYPED_TEST(StepWireRequest, LeavesOutTheDataOfWhatIsTooLarge) {
  Random random(1);
  TypeParam request;
  do {
    FillRequest(random, &request);
  } while (TensorsOf(request).empty() || TensorsOf(request)[0].first->data().empty());
  grpc::ByteBuffer wire = Cut(random, request.SerializeAsString());
  TypeParam read;
  const auto received =
      ReadStepRequest(wire, /*max_bytes=*/static_cast<int64_t>(wire.Length()) - 1, this->memory_, MayParseAll, read);
  ASSERT_TRUE(received.ok()) << received.status();
  EXPECT_EQ(received->bytes(), nullptr);
  for (const auto& [tensor, i] : TensorsOf(request)) tensor->clear_data();
  EXPECT_EQ(read.SerializeAsString(), request.SerializeAsString());
}

class StepWireReply : public testing::TestWithParam<int64_t> {
 protected:
  // Writes `reply` with data for its output, which is `output` of it; what is read is equal.
  template <typename Reply>
  void IsReadAsWritten(Reply& reply, v1::Tensor* output) {
    Random random(7);
    const std::string data = Bytes(random, GetParam());
    ReplyOutput lent{.block = {}, .bytes = data.size()};
    if (!data.empty()) {
      lent.block = *memory_.TakeForCall(data.size());
      std::ranges::copy(data, lent.block.chars());
    }
    Reply written = reply;
    grpc::ByteBuffer wire = WriteStepReply(written, std::move(lent));
    Reply read;
    ASSERT_TRUE(read.ParseFromString(Joined(wire)));
    output->set_data(data);
    EXPECT_EQ(read.SerializeAsString(), reply.SerializeAsString());
  }
  template <typename Reply>
  static void FillReply(Reply* reply) {
    reply->mutable_output()->set_dtype(v1::DTYPE_F16);
    reply->mutable_output()->add_shape(3);
    reply->mutable_output()->add_shape(1'000'000);
    reply->set_compute_time_us(300);
  }

  const std::unique_ptr<Backend> backend_ = MakeNullBackend();
  HostBlockPool memory_{*backend_, /*keep_bytes=*/1 << 24};
};
INSTANTIATE_TEST_SUITE_P(Bytes, StepWireReply, testing::Values(0, 1, 127, 4096, 16384, 16385, 3'000'000));

TEST_P(StepWireReply, OfUnaryCallsIsReadAsWritten) {
  v1::PrefillResponse prefill;
  FillReply(&prefill);
  IsReadAsWritten(prefill, prefill.mutable_output());
  v1::DecodeResponse decode;
  FillReply(&decode);
  decode.add_token_counts(17);
  IsReadAsWritten(decode, decode.mutable_output());
}

TEST_P(StepWireReply, OfStreamsIsReadAsWritten) {
  v1::StreamPrefillResponse prefill;
  FillReply(prefill.mutable_result());
  IsReadAsWritten(prefill, prefill.mutable_result()->mutable_output());
  v1::StreamDecodeResponse decode;
  FillReply(decode.mutable_result());
  IsReadAsWritten(decode, decode.mutable_result()->mutable_output());
}

template <typename Reply>
void IsReadWithoutOutput(Reply reply) {
  Reply written = reply;
  grpc::ByteBuffer wire = WriteStepReply(written, {});
  Reply read;
  ASSERT_TRUE(read.ParseFromString(Joined(wire)));
  EXPECT_EQ(read.SerializeAsString(), reply.SerializeAsString());
}

TEST(StepWireReplies, MayHaveNoOutput) {
  v1::DecodeResponse decode;
  decode.add_token_counts(3);
  decode.add_row_statuses()->set_code(5);
  IsReadWithoutOutput(decode);
  v1::StreamDecodeResponse in_stream;
  *in_stream.mutable_result() = decode;
  IsReadWithoutOutput(in_stream);
  v1::StreamPrefillResponse failed;
  failed.mutable_status()->set_code(3);
  IsReadWithoutOutput(failed);
}

// The data of a long reply are not copied: they are the memory that the step wrote, until gRPC has done with it.
TEST(StepWireReplies, LendsItsDataWhileItIsThere) {
  const std::unique_ptr<Backend> backend = MakeNullBackend();
  HostBlockPool memory(*backend, /*keep_bytes=*/1 << 24);
  constexpr size_t kBytes = size_t{1} << 20;
  HostBlock block = *memory.TakeForCall(kBytes);
  const char* const data = block.chars();
  v1::PrefillResponse reply;
  reply.mutable_output()->set_dtype(v1::DTYPE_F32);
  grpc::ByteBuffer wire = WriteStepReply(reply, {.block = std::move(block), .bytes = kBytes});
  std::vector<grpc::Slice> slices;
  ASSERT_TRUE(wire.Dump(&slices).ok());
  EXPECT_TRUE(std::ranges::any_of(
      slices, [&](const grpc::Slice& slice) { return reinterpret_cast<const char*>(slice.begin()) == data; }));
  EXPECT_NE((*memory.TakeForCall(kBytes)).chars(), data);
  slices.clear();
  wire.Clear();
  const HostBlock again = *memory.TakeForCall(kBytes);
  const HostBlock more = *memory.TakeForCall(kBytes);
  EXPECT_TRUE(again.chars() == data || more.chars() == data);
}

TEST(RefusedRequests, GiveTheirMemoryBackBeforeTheyAreAnswered) {
  const std::unique_ptr<Backend> backend = MakeNullBackend();
  HostBlockPool memory(*backend, /*keep_bytes=*/1 << 24);
  v1::DecodeRequest request, read;
  for (int i = 0; i < 10'000; ++i) request.add_sessions("sessions/a");
  const std::string bytes = request.SerializeAsString();
  const grpc::Slice slice(bytes);
  grpc::ByteBuffer wire(&slice, 1);
  int64_t asked = 0;
  const auto refuse = [&asked](int64_t parsed) {
    asked = parsed;
    return absl::ResourceExhaustedError("no room");
  };
  EXPECT_TRUE(absl::IsResourceExhausted(ReadStepRequest(wire, int64_t{1} << 20, memory, refuse, read).status()));
  EXPECT_GT(asked, static_cast<int64_t>(bytes.size()));
  EXPECT_FALSE(wire.Valid());
  EXPECT_EQ(read.sessions_size(), 0);
}

}  // namespace
}  // namespace gdn::step_wire_test
