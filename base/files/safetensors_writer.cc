// Writing safetensors files; base/files/safetensors.h has the contract, safetensors.cc reads them.

#include <bit>
#include <cstring>
#include <set>

#include "absl/strings/str_join.h"
#include "base/error.h"
#include "base/files/safetensors.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

constexpr size_t kHeaderAlignment = 8;

// Returns the JSON of a text, or of texts by name.
absl::StatusOr<std::string> ToJson(const nlohmann::json& texts) {
  try {
    return texts.dump();
  } catch (const nlohmann::json::exception&) {
    return absl::InvalidArgumentError("a tensor name or metadata entry is not UTF-8");
  }
}

absl::Status ValidateTensor(const RawTensor& tensor) {
  if (tensor.name == "__metadata__") {
    return absl::InvalidArgumentError("a tensor may not be named '__metadata__'; that name holds the metadata");
  }
  const auto expected = SafetensorsTensorBytes(tensor.dtype, tensor.shape);
  if (!expected.ok()) return WithPrefix(expected.status(), StrCat("tensor '", tensor.name, "'"));
  if (tensor.data.size() != *expected) {
    return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidTensorData,
                     StrCat("tensor '", tensor.name, "' has ", tensor.data.size(), " bytes; its shape ",
                            ShapeToString(tensor.shape), " of ", tensor.dtype, " needs ", *expected),
                     {{"tensor", tensor.name}});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::string> SafetensorsHeader(const std::vector<RawTensor>& tensors,
                                              const std::map<std::string, std::string>& metadata) {
  static_assert(std::endian::native == std::endian::little);
  uint64_t text_bytes = 0;
  std::string header(sizeof(text_bytes), '\0');
  header += "{";
  if (!metadata.empty()) {
    GDN_ASSIGN_OR_RETURN(const std::string json, ToJson(metadata));
    StrAppend(&header, "\"__metadata__\":", json);
  }
  std::set<std::string_view> names;
  uint64_t offset = 0;
  for (const RawTensor& tensor : tensors) {
    GDN_RETURN_IF_ERROR(ValidateTensor(tensor));
    if (!names.insert(tensor.name).second) {
      return absl::InvalidArgumentError(StrCat("two tensors are named '", tensor.name, "'"));
    }
    GDN_ASSIGN_OR_RETURN(const std::string name, ToJson(tensor.name));
    const uint64_t end = offset + tensor.data.size();
    StrAppend(&header, header.back() == '{' ? "" : ",", name, ":{\"dtype\":\"", tensor.dtype, "\",\"shape\":[",
              absl::StrJoin(tensor.shape, ","), "],\"data_offsets\":[", offset, ",", end, "]}");
    offset = end;
  }
  header += "}";
  // Spaces, so that the data begins aligned.
  header.resize((header.size() + kHeaderAlignment - 1) / kHeaderAlignment * kHeaderAlignment, ' ');
  text_bytes = header.size() - sizeof(text_bytes);
  std::memcpy(header.data(), &text_bytes, sizeof(text_bytes));
  return header;
}

absl::StatusOr<std::string> SerializeSafetensors(const std::vector<NamedTensor>& tensors,
                                                 const std::map<std::string, std::string>& metadata) {
  std::vector<RawTensor> raw;
  raw.reserve(tensors.size());
  size_t data_bytes = 0;
  for (const NamedTensor& tensor : tensors) {
    raw.push_back({.name = tensor.name,
                   .dtype = std::string(DTypeName(tensor.view.dtype)),
                   .shape = tensor.view.shape,
                   .data = tensor.view.data});
    data_bytes += tensor.view.data.size();
  }
  GDN_ASSIGN_OR_RETURN(std::string file, SafetensorsHeader(raw, metadata));
  file.reserve(file.size() + data_bytes);
  for (const RawTensor& tensor : raw) file.append(tensor.data.data(), tensor.data.size());
  return file;
}

}  // namespace gdn
