#include "client/cpp/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "base/error.h"
#include "base/files/fresh_mapping.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "client/cpp/share_memory_call.h"
#include "client/cpp/tensor_codec.h"

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

absl::StatusOr<std::unique_ptr<SharedMemory>> SharedMemory::Open(v1::GdnService::StubInterface& stub,
                                                                 std::unique_ptr<grpc::ClientContext> context,
                                                                 int64_t bytes, absl::Duration timeout) {
  v1::ShareMemoryRequest request;
  request.set_bytes(bytes);
  GDN_ASSIGN_OR_RETURN(std::unique_ptr<ShareMemoryCall> keeper,
                       ShareMemoryCall::Start(stub, std::move(context), request));
  std::unique_ptr<SharedMemory> memory(new SharedMemory(std::move(keeper)));
  GDN_ASSIGN_OR_RETURN(const v1::ShareMemoryResponse response, memory->keeper_->WaitForResponse(timeout));
  GDN_RETURN_IF_ERROR(memory->Map(response.region()));
  return memory;
}

SharedMemory::SharedMemory(std::unique_ptr<ShareMemoryCall> keeper) : keeper_(std::move(keeper)) {}

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

absl::Status SharedMemory::status() const { return keeper_->status(); }

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
