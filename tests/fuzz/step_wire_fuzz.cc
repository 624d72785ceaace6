// Steps as they travel, read around protobuf (step_wire.h) and as protobuf reads them: both must agree. Then what a
// request goes through before a session is touched, shared memory included. The first byte chooses the message, the
// second the dimensions.
#include <grpcpp/support/byte_buffer.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "base/files/temporary_folder.h"
#include "server/rpc/steps/step_wire.h"
#include "server/shared_memory/shared_region.h"
#include "server/validation/step_input.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

constexpr int64_t kRegionBytes = 4096;
constexpr LayerDims kOperator{.key_heads = 1, .value_heads = 2, .key_dim = 2, .value_dim = 3};
constexpr LayerDims kModel{
    .key_heads = 1, .value_heads = 2, .key_dim = 2, .value_dim = 3, .conv_width = 4, .hidden_size = 5};

const SharedRegion& Region() {
  static const TemporaryFolder folder = *TemporaryFolder::Make();
  static const std::unique_ptr<SharedRegion> region = *SharedRegion::Make(folder.path(), kRegionBytes);
  return *region;
}

// Checks and reads a range as SharedTensors does.
void ReadShared(const v1::SharedRange& range, std::vector<char>& to) {
  const absl::Status status = Region().CheckRange(range.offset(), range.bytes());
  fuzz::CheckRefusal(status);
  if (!status.ok()) return;
  GDN_FUZZ_CHECK(Region().CheckSize(range.offset() + range.bytes()).ok(), "a region that became shorter");
  to.resize(static_cast<size_t>(range.bytes()));
  GDN_FUZZ_CHECK(Region().Read(range.offset(), absl::MakeSpan(to)).ok(), "a range that cannot be read");
}

void CheckRows(CheckedInput& input) {
  std::vector<std::vector<char>> copies(input.fields.size());
  for (size_t i = 0; i < input.fields.size(); ++i) {
    CheckedField& field = input.fields[i];
    if (field.shared == nullptr) continue;
    ReadShared(*field.shared, copies[i]);
    if (static_cast<int64_t>(copies[i].size()) != field.shared->bytes()) return;
    field.view.data = {copies[i].data(), copies[i].size()};
  }
  std::vector<char> output;
  if (input.output_shared != nullptr) ReadShared(*input.output_shared, output);
  for (const CheckedRow& row : input.rows) {
    fuzz::CheckRefusal(CheckRowValues(input, row));
    HashRow(input, row);
  }
}

absl::StatusOr<CheckedInput> Check(const v1::PrefillRequest& request, const TensorBytes* data, const LayerDims& dims) {
  return CheckPrefillInput(request, data, dims);
}
absl::StatusOr<CheckedInput> Check(const v1::DecodeRequest& request, const TensorBytes* data, const LayerDims& dims) {
  return CheckDecodeInput(request, data, dims, {.max_message_bytes = int64_t{1} << 20});
}
absl::StatusOr<CheckedInput> Check(const v1::StepRequest& request, const TensorBytes* data, const LayerDims& dims) {
  return CheckStepInput(request, data, dims, {.max_message_bytes = int64_t{1} << 20});
}
absl::StatusOr<CheckedInput> Check(const v1::StreamPrefillRequest& request, const TensorBytes* data,
                                   const LayerDims& dims) {
  return Check(request.segment(), data, dims);
}
absl::StatusOr<CheckedInput> Check(const v1::StreamDecodeRequest& request, const TensorBytes* data,
                                   const LayerDims& dims) {
  return Check(request.step(), data, dims);
}

absl::StatusOr<CheckedInput> Check(const v1::StreamStepRequest& request, const TensorBytes* data,
                                   const LayerDims& dims) {
  return Check(request.step(), data, dims);
}

// In pieces, as it comes from the network.
grpc::ByteBuffer Cut(std::string_view bytes, size_t piece) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += piece) {
    const std::string_view part = bytes.substr(at, piece);
    slices.emplace_back(part.data(), part.size());
  }
  return {slices.data(), slices.size()};
}

template <typename Request>
void ReadBothWays(std::string_view bytes, const LayerDims& dims) {
  Request expected;
  const bool is_message = expected.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
  Request request;
  absl::StatusOr<ReceivedTensors> received = ReceivedTensors();
  for (const size_t piece : {std::max<size_t>(bytes.size(), 1), size_t{7}}) {
    grpc::ByteBuffer wire = Cut(bytes, piece);
    request.Clear();
    received = ReadStepRequest(
        wire, /*max_bytes=*/int64_t{1} << 20, fuzz::Memory(), [](int64_t) { return absl::OkStatus(); }, request);
    fuzz::CheckRefusal(received.status());
    GDN_FUZZ_CHECK(received.ok() == is_message, received.status().ToString());
  }
  if (!is_message) return;
  // ReadStepRequest puts the tensors in memory of its own; the plain parse leaves them in the message.
  auto checked = Check(request, received->bytes(), dims);
  auto plain = Check(expected, nullptr, dims);
  GDN_FUZZ_CHECK(checked.status() == plain.status(), checked.status().ToString() + plain.status().ToString());
  if (!checked.ok()) return fuzz::CheckRefusal(checked.status());
  GDN_FUZZ_CHECK(checked->fields.size() == plain->fields.size(), "other tensors");
  for (size_t i = 0; i < checked->fields.size(); ++i) {
    GDN_FUZZ_CHECK(checked->fields[i].view.data == plain->fields[i].view.data, checked->fields[i].name);
  }
  CheckRows(*checked);
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace gdn;  // NOLINT: a target is gdn's
  fuzz::Input input(data, size);
  const uint8_t message = input.Byte();
  const LayerDims& dims = input.Byte() % 2 == 0 ? kOperator : kModel;
  switch (message % 6) {
    case 0:
      ReadBothWays<v1::PrefillRequest>(input.Rest(), dims);
      break;
    case 1:
      ReadBothWays<v1::DecodeRequest>(input.Rest(), dims);
      break;
    case 2:
      ReadBothWays<v1::StreamPrefillRequest>(input.Rest(), dims);
      break;
    case 3:
      ReadBothWays<v1::StreamDecodeRequest>(input.Rest(), dims);
      break;
    case 4:
      ReadBothWays<v1::StepRequest>(input.Rest(), dims);
      break;
    default:
      ReadBothWays<v1::StreamStepRequest>(input.Rest(), dims);
  }
  return 0;
}
