#include "base/files/safetensors.h"
#include "base/files/json_fault.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <tuple>

#include "base/error.h"
#include "base/files/safetensors_header.h"
#include "base/status_macros.h"
#include "base/string_cat.h"

namespace gdn {
namespace {

constexpr size_t kPrefixBytes = 8;

// Bits of one element, 0 for a dtype the format does not have.
int DTypeBits(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int> kBits[] = {
      {"F32", 32},    {"BF16", 16}, {"F16", 16},        {"F64", 64},       {"I64", 64},    {"U64", 64},
      {"C64", 64},    {"I32", 32},  {"U32", 32},        {"I16", 16},       {"U16", 16},    {"I8", 8},
      {"U8", 8},      {"BOOL", 8},  {"F8_E5M2", 8},     {"F8_E4M3", 8},    {"F8_E8M0", 8}, {"F6_E2M3", 6},
      {"F6_E3M2", 6}, {"F4", 4},    {"F8_E5M2FNUZ", 8}, {"F8_E4M3FNUZ", 8}};
  for (const auto& [name, bits] : kBits) {
    if (dtype == name) return bits;
  }
  return 0;
}

// The tensors must cover the data section from its first byte to its last, each byte once.
absl::Status CheckCoverage(const std::map<std::string, SafetensorsEntry>& entries, uint64_t data_bytes) {
  std::vector<std::tuple<uint64_t, uint64_t, const std::string*>> ranges;
  ranges.reserve(entries.size());
  for (const auto& [name, entry] : entries) ranges.emplace_back(entry.begin, entry.end, &name);
  std::sort(ranges.begin(), ranges.end());
  uint64_t covered = 0;
  for (const auto& [begin, end, name] : ranges) {
    if (end > data_bytes) {
      return DamagedSafetensorsTensor(
          *name, StrCat("ends at byte ", end, " of the data, which has ", data_bytes, "; the file may be cut short"));
    }
    if (begin < covered) {
      return DamagedSafetensorsTensor(
          *name, StrCat("begins at byte ", begin, ", inside the tensor before it, which ends at ", covered));
    }
    if (begin > covered) {
      return DamagedSafetensorsTensor(*name,
                                      StrCat("begins at byte ", begin, " but the tensor before it ends at ", covered));
    }
    covered = end;
  }
  if (covered != data_bytes) {
    return DamagedSafetensors(StrCat("its tensors end at byte ", covered, " of the data, which has ", data_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  GDN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(path));
  auto file = Parse(mapped.bytes());
  if (!file.ok()) return WithPrefix(file.status(), StrCat("'", path, "'"));
  file->file_ = std::move(mapped);
  return file;
}

absl::StatusOr<uint64_t> SafetensorsTensorBytes(std::string_view dtype, const std::vector<int64_t>& shape) {
  const auto bits = static_cast<uint64_t>(DTypeBits(dtype));
  if (bits == 0) return absl::InvalidArgumentError(StrCat("has the unknown dtype '", dtype, "'"));
  const auto count = CheckedElementCount(shape);
  if (!count.ok()) return WithPrefix(count.status(), "has too large a shape");
  // Of 8 bytes at most, so 64 bits hold the bytes but not the bits.
  const auto elements = static_cast<uint64_t>(*count);
  if (elements % 8 * bits % 8 != 0) {
    return absl::InvalidArgumentError(StrCat("of dtype ", dtype, " does not end at a whole byte"));
  }
  return elements / 8 * bits + elements % 8 * bits / 8;
}

absl::StatusOr<uint64_t> SafetensorsHeaderEnd(std::string_view bytes) {
  static_assert(std::endian::native == std::endian::little);
  if (IsLfsPointer(bytes)) return DamagedSafetensors(kFetchLfsFile);
  if (bytes.size() < kPrefixBytes) {
    return DamagedSafetensors(StrCat("it has ", bytes.size(), " bytes; expected at least the 8 of the header length"));
  }
  uint64_t header_bytes;
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  const uint64_t rest = bytes.size() - kPrefixBytes;
  if (header_bytes > kMostSafetensorsHeaderBytes || header_bytes > rest) {
    return DamagedSafetensors(StrCat("its header length is ", header_bytes, "; expected at most ",
                                     std::min(rest, kMostSafetensorsHeaderBytes), " (", rest, " bytes follow)"));
  }
  return kPrefixBytes + header_bytes;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::string_view bytes) {
  return ParseHeader(bytes, bytes.size());
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::ParseHeader(std::string_view bytes, uint64_t file_bytes) {
  GDN_ASSIGN_OR_RETURN(const uint64_t header_end, SafetensorsHeaderEnd(bytes));
  if (file_bytes > 0 && file_bytes < header_end)
    return DamagedSafetensors(StrCat("it has ", file_bytes, " bytes; its header ends at ", header_end));
  const std::string_view text = bytes.substr(kPrefixBytes, header_end - kPrefixBytes);
  if (text.empty() || text.front() != '{') return DamagedSafetensors("its header does not begin with '{'");
  GDN_ASSIGN_OR_RETURN(SafetensorsHeaderFields header, ReadSafetensorsHeader(text));

  SafetensorsFile file;
  file.data_ = bytes.substr(header_end);
  file.metadata_ = std::move(header.metadata);
  file.entries_ = std::move(header.entries);
  file.header_bytes_ = header_end;
  if (file_bytes > 0) file.data_bytes_ = file_bytes - header_end;
  for (const auto& [name, entry] : file.entries_) {
    if (file_bytes == 0) file.data_bytes_ = std::max(file.data_bytes_, entry.end);
  }
  GDN_RETURN_IF_ERROR(CheckCoverage(file.entries_, file.data_bytes_));
  return file;
}

absl::StatusOr<std::string_view> SafetensorsFile::Bytes(const std::string& name) const {
  const auto it = entries_.find(name);
  if (it == entries_.end()) {
    return WithMetadata(absl::NotFoundError(StrCat("the file has no tensor '", name, "'")), "tensor", name);
  }
  const SafetensorsEntry& entry = it->second;
  if (entry.end > data_.size()) {
    return WithMetadata(absl::FailedPreconditionError(StrCat("only the header was read, and not tensor '", name, "'")),
                        "tensor", name);
  }
  return data_.substr(entry.begin, entry.end - entry.begin);
}

absl::StatusOr<TensorView> SafetensorsFile::Tensor(const std::string& name) const {
  GDN_ASSIGN_OR_RETURN(const std::string_view bytes, Bytes(name));
  const SafetensorsEntry& entry = entries_.at(name);
  const auto dtype = ParseDType(entry.dtype);
  if (!dtype.ok()) {
    return WithMetadata(WithPrefix(dtype.status(), StrCat("tensor '", name, "'")), "tensor", name);
  }
  return TensorView{*dtype, entry.shape, bytes};
}

absl::StatusOr<std::vector<float>> SafetensorsFile::Floats(const std::string& name,
                                                           std::optional<std::vector<int64_t>> shape) const {
  GDN_ASSIGN_OR_RETURN(const TensorView view, Tensor(name));
  if (shape.has_value()) {
    const bool equal = std::equal(view.shape.begin(), view.shape.end(), shape->begin(), shape->end(),
                                  [](int64_t found, int64_t expected) { return expected == -1 || found == expected; });
    if (!equal) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, reason::kInvalidTensorShape,
          StrCat("tensor '", name, "' has shape ", ShapeToString(view.shape), "; expected ", ShapeToString(*shape)),
          {{"tensor", name}});
    }
  }
  std::vector<float> values(static_cast<size_t>(view.ElementCount()));
  ConvertToFloat(view.dtype, view.data.data(), values.size(), values.data());
  return values;
}

}  // namespace gdn
