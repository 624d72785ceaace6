#include <bit>
#include <cstring>
#include <set>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

constexpr size_t kHeaderAlignment = 8;

// `text` as a JSON string.
absl::StatusOr<std::string> Quoted(const std::string& text) {
  try {
    return nlohmann::json(text).dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("a tensor name or metadata entry is not UTF-8");
  }
}

absl::StatusOr<std::string> MetadataJson(const std::map<std::string, std::string>& metadata) {
  std::string json;
  for (const auto& [key, value] : metadata) {
    GDN_ASSIGN_OR_RETURN(const std::string quoted_key, Quoted(key));
    GDN_ASSIGN_OR_RETURN(const std::string quoted_value, Quoted(value));
    StrAppend(&json, json.empty() ? "" : ",", quoted_key, ":", quoted_value);
  }
  return StrCat("\"__metadata__\":{", json, "}");
}

absl::Status ValidateTensor(const NamedTensor& tensor) {
  if (tensor.name == "__metadata__") {
    return absl::InvalidArgumentError("a tensor may not be named '__metadata__'; that name holds the metadata");
  }
  const auto count = CheckedElementCount(tensor.view.shape);
  if (!count.ok()) return WithPrefix(count.status(), StrCat("tensor '", tensor.name, "'"));
  const uint64_t expected = static_cast<uint64_t>(*count) * DTypeSize(tensor.view.dtype);
  if (tensor.view.data.size() != expected) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
        StrCat("tensor '", tensor.name, "' has ", tensor.view.data.size(), " bytes; its shape ",
               ShapeToString(tensor.view.shape), " of ", DTypeName(tensor.view.dtype), " needs ", expected),
        {{"tensor", tensor.name}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SerializeSafetensors(const std::vector<NamedTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little);
  std::string header = "{";
  if (!metadata.empty()) {
    GDN_ASSIGN_OR_RETURN(const std::string json, MetadataJson(metadata));
    header += json;
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const NamedTensor& tensor : tensors) {
    GDN_RETURN_IF_ERROR(ValidateTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(StrCat("two tensors are named '", tensor.name, "'"));
    }
    GDN_ASSIGN_OR_RETURN(const std::string name, Quoted(tensor.name));
    const uint64_t end = offset + tensor.view.data.size();
    StrAppend(&header, header.size() == 1 ? "" : ",", name, ":{\"dtype\":\"", DTypeName(tensor.view.dtype),
              "\",\"shape\":[", absl::StrJoin(tensor.view.shape, ","), "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  // Spaces, so that the data begins aligned.
  header.resize((header.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');

  const uint64_t header_bytes = header.size();
  char prefix[sizeof(header_bytes)];
  std::memcpy(prefix, &header_bytes, sizeof(header_bytes));
  std::string file;
  file.reserve(sizeof(prefix) + header.size() + offset);
  file.append(prefix, sizeof(prefix));
  file += header;
  for (const NamedTensor& tensor : tensors) file.append(tensor.view.data.data(), tensor.view.data.size());
  return file;
}

}  // namespace gdn
