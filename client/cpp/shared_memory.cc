#include "client/cpp/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "base/error.h"
#include "base/files/fresh_mapping.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/rpc_status.h"
#include "client/cpp/tensor_codec.h"
#include "grpcpp/support/client_callback.h"

namespace gdn {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line

absl::Status NotShared(const v1::SharedRegion& region, std::string_view why) {
  return MakeError(absl::StatusCode::kUnimplemented, reason::kSharedMemoryNotOffered,
                   StrCat("the server's memory at '", region.path(), "' cannot be shared: ", why,
                          "; is it another host's or container's? Send tensors in the messages"));
}

absl::Status OutsideRegion(std::string_view found, std::string_view region, size_t bytes) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSharedRange,
                   StrCat(found, " is not inside region ", region, " of ", bytes, " bytes"),
                   {{"region", std::string(region)}, {"found", std::string(found)}});
}

}  // namespace

// The call that keeps the region.
class SharedMemory::Registration final : public grpc::ClientReadReactor<v1::ShareMemoryResponse> {
 public:
  Registration(v1::GdnService::StubInterface::async_interface& stub, std::unique_ptr<grpc::ClientContext> context,
               int64_t bytes)
      : context_(std::move(context)) {
    request_.set_bytes(bytes);
    stub.ShareMemory(context_.get(), &request_, this);
    StartRead(&response_);
    StartCall();
  }
  ~Registration() override {
    context_->TryCancel();
    absl::MutexLock lock(&mu_);
    mu_.Await(absl::Condition(this, &Registration::Done));
  }

  absl::StatusOr<v1::SharedRegion> WaitForRegion(absl::Duration timeout) {
    absl::MutexLock lock(&mu_);
    if (!mu_.AwaitWithTimeout(absl::Condition(this, &Registration::Answered), timeout)) {
      return absl::DeadlineExceededError(
          StrCat("the server has not shared memory within ", absl::FormatDuration(timeout)));
    }
    if (end_.has_value()) return *end_;
    return *region_;
  }

  absl::Status status() const {
    absl::MutexLock lock(&mu_);
    return end_.value_or(absl::OkStatus());
  }

 private:
  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    {
      absl::MutexLock lock(&mu_);
      region_ = std::move(*response_.mutable_region());
    }
    StartRead(&response_);
  }
  void OnDone(const grpc::Status& status) override {
    absl::Status end = StatusFromGrpc(status);
    absl::MutexLock lock(&mu_);
    end_ = end.ok() ? absl::CancelledError("the server has ended the region") : std::move(end);
  }

  bool Done() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value(); }
  bool Answered() const ABSL_SHARED_LOCKS_REQUIRED(mu_) { return end_.has_value() || region_.has_value(); }

  const std::unique_ptr<grpc::ClientContext> context_;
  v1::ShareMemoryRequest request_;
  v1::ShareMemoryResponse response_;
  mutable absl::Mutex mu_;
  std::optional<v1::SharedRegion> region_ ABSL_GUARDED_BY(mu_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(v1::GdnService::StubInterface& stub,
                                                                 std::unique_ptr<grpc::ClientContext> context,
                                                                 int64_t bytes, absl::Duration timeout) {
  if (stub.async() == nullptr) {
    return absl::FailedPreconditionError("ShareMemory needs a client that was made of a channel");
  }
  std::unique_ptr<SharedMemory> memory(
      new SharedMemory(std::make_unique<Registration>(*stub.async(), std::move(context), bytes)));
  GDN_ASSIGN_OR_RETURN(const v1::SharedRegion region, memory->registration_->WaitForRegion(timeout));
  GDN_RETURN_IF_ERROR(memory->Map(region));
  return memory;
}

SharedMemory::SharedMemory(std::unique_ptr<Registration> registration) : registration_(std::move(registration)) {}

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

absl::Status SharedMemory::Map(const v1::SharedRegion& region) {
  // A server must not be able to make its clients write to files of its choice.
  if (!absl::StartsWith(region.name(), "gdn-shm-") ||
      std::filesystem::path(region.path()).filename() != region.name()) {
    return NotShared(region, StrCat("it is not the file of a region named '", region.name(), "'"));
  }
  const int fd = open(region.path().c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return NotShared(region, std::strerror(errno));
  struct stat found {};
  const bool fits =
      fstat(fd, &found) == 0 && S_ISREG(found.st_mode) && region.bytes() > 0 && found.st_size == region.bytes();
  void* const mapped =
      fits ? mmap(nullptr, static_cast<size_t>(region.bytes()), PROT_READ | PROT_WRITE, MAP_SHARED, fd, /*offset=*/0)
           : MAP_FAILED;
  const int error = errno;
  close(fd);
  if (!fits) return NotShared(region, StrCat("it is no file of ", region.bytes(), " bytes"));
  if (mapped == MAP_FAILED) return NotShared(region, std::strerror(error));
  ForgetOldMarks(mapped, static_cast<size_t>(region.bytes()));
  region_ = region.name();
  data_ = static_cast<char*>(mapped);
  size_ = static_cast<size_t>(region.bytes());
  return absl::OkStatus();
}

absl::Status SharedMemory::status() const { return registration_->status(); }

absl::StatusOr<v1::SharedRange> SharedMemory::RangeAt(int64_t offset, int64_t bytes) const {
  const auto size = static_cast<int64_t>(size_);
  if (offset < 0 || bytes < 0 || offset > size || bytes > size - offset) {
    return OutsideRegion(StrCat(bytes, " bytes at offset ", offset), region_, size_);
  }
  v1::SharedRange range;
  range.set_region(region_);
  range.set_offset(offset);
  range.set_bytes(bytes);
  return range;
}

absl::StatusOr<v1::SharedRange> SharedMemory::Allocate(int64_t bytes) {
  absl::MutexLock lock(&mu_);
  const auto free = static_cast<int64_t>(size_) - next_;
  if (bytes < 0 || bytes > free) {
    return absl::ResourceExhaustedError(StrCat(bytes, " bytes are not free in a region of ", size_, ": ", free,
                                               " are; share more memory, or Reset() what is not used any more"));
  }
  auto range = RangeAt(next_, bytes);
  next_ = std::min<int64_t>(static_cast<int64_t>(size_), (next_ + bytes + kAlignment - 1) / kAlignment * kAlignment);
  return range;
}

void SharedMemory::Reset() {
  absl::MutexLock lock(&mu_);
  next_ = 0;
}

absl::StatusOr<absl::Span<char>> SharedMemory::BytesOf(const v1::SharedRange& range) const {
  if (range.region() != region_) return OutsideRegion(StrCat("a range of region ", range.region()), region_, size_);
  GDN_RETURN_IF_ERROR(RangeAt(range.offset(), range.bytes()).status());
  return bytes().subspan(static_cast<size_t>(range.offset()), static_cast<size_t>(range.bytes()));
}

absl::StatusOr<absl::Span<char>> SharedMemory::AddTensor(DType dtype, absl::Span<const int64_t> shape,
                                                         v1::Tensor* tensor) {
  GDN_ASSIGN_OR_RETURN(const int64_t count, CheckedElementCount(shape));
  GDN_ASSIGN_OR_RETURN(v1::SharedRange range, Allocate(count * static_cast<int64_t>(DTypeSize(dtype))));
  tensor->Clear();
  tensor->set_dtype(ToProtoDType(dtype));
  for (const int64_t dim : shape) tensor->add_shape(dim);
  *tensor->mutable_shared() = std::move(range);
  return BytesOf(tensor->shared());
}

absl::Status SharedMemory::AddTensor(const TensorView& view, v1::Tensor* tensor) {
  GDN_ASSIGN_OR_RETURN(const absl::Span<char> to, AddTensor(view.dtype, view.shape, tensor));
  if (view.data.size() != to.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                     StrCat("the tensor has ", view.data.size(), " bytes, its shape needs ", to.size()),
                     {{"found", StrCat(view.data.size())}, {"expected", StrCat(to.size())}});
  }
  std::copy(view.data.begin(), view.data.end(), to.begin());
  return absl::OkStatus();
}

absl::StatusOr<TensorView> SharedMemory::View(const v1::Tensor& tensor) const {
  if (!tensor.has_shared()) return ViewTensor(tensor);
  GDN_ASSIGN_OR_RETURN(const absl::Span<char> bytes, BytesOf(tensor.shared()));
  return ViewTensorBytes(tensor, {bytes.data(), bytes.size()});
}

}  // namespace gdn
