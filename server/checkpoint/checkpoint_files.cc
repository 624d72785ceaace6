#include "server/checkpoint/checkpoint_files.h"

#include <utility>

#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/files/mapped_file.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kSingleFile = "model.safetensors";
constexpr std::string_view kIndexFile = "model.safetensors.index.json";

absl::Status InvalidIndex(const std::string& path, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, StrCat("'", path, "' ", message));
}

// Returns true for a name without folders. An index is downloaded, so it must not point at other files of this machine.
bool IsPlainFileName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseCheckpointIndex(std::string_view text,
                                                                        const std::string& path) {
  const Json index = Json::parse(text.begin(), text.end(), /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (index.is_discarded())
    return InvalidIndex(path,
                        StrCat("is not JSON: ", JsonFault(text), "; expected an index with the object 'weight_map'"));
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    return InvalidIndex(path, "is not an index; expected a JSON object with the object 'weight_map'");
  }
  std::map<std::string, std::string> files;
  for (const auto& [tensor, shard] : index["weight_map"].items()) {
    if (!shard.is_string() || !IsPlainFileName(shard.get_ref<const std::string&>())) {
      return InvalidIndex(
          path, StrCat("places tensor '", tensor, "' in ", shard.dump(-1, ' ', true, Json::error_handler_t::replace),
                       "; expected the name of a file in the same folder"));
    }
    files.emplace(tensor, shard.get_ref<const std::string&>());
  }
  return files;
}

absl::StatusOr<CheckpointFiles> CheckpointFiles::Open(const std::string& directory) {
  CheckpointFiles files(directory);
  auto single = SafetensorsFile::Open(StrCat(directory, "/", kSingleFile));
  if (single.ok()) {
    for (const auto& [name, entry] : single->entries()) files.tensors_.emplace(name, kSingleFile);
    files.files_.emplace(kSingleFile, *std::move(single));
    return files;
  }
  if (!absl::IsNotFound(single.status())) return single.status();
  const std::string index = StrCat(directory, "/", kIndexFile);
  const auto file = MappedFile::Open(index);
  if (absl::IsNotFound(file.status())) {
    return absl::NotFoundError(StrCat("'", directory, "' has neither ", kSingleFile, " nor ", kIndexFile,
                                      "; expected a Hugging Face checkpoint folder with safetensors weights"));
  }
  GDN_RETURN_IF_ERROR(file.status());
  GDN_ASSIGN_OR_RETURN(files.tensors_, ParseCheckpointIndex(file->bytes(), index));
  return files;
}

absl::StatusOr<const SafetensorsFile*> CheckpointFiles::FileOf(const std::string& name) {
  const auto placed = tensors_.find(name);
  if (placed == tensors_.end()) {
    return WithMetadata(absl::NotFoundError(StrCat("'", directory_, "' has no tensor '", name, "'")), "tensor", name);
  }
  const std::string& file_name = placed->second;
  auto file = files_.find(file_name);
  if (file == files_.end()) {
    auto opened = WithPrefix(SafetensorsFile::Open(StrCat(directory_, "/", file_name)),
                             StrCat("the shard of tensor '", name, "'"));
    if (!opened.ok()) return WithMetadata(opened.status(), "tensor", name);
    file = files_.emplace(file_name, *std::move(opened)).first;
  }
  return &file->second;
}

absl::StatusOr<StoredTensor> CheckpointFiles::Tensor(const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile* file, FileOf(name));
  const auto entry = file->entries().find(name);
  if (entry != file->entries().end() && entry->second.dtype == WeightFormatName(WeightFormat::kF8E4M3)) {
    return Fp8Tensor(name, *file);
  }
  GDN_ASSIGN_OR_RETURN(const TensorView view, WithPrefix(file->Tensor(name), PathOf(name)));
  return PlainTensor(view);
}

absl::StatusOr<RawView> CheckpointFiles::Raw(const std::string& name) {
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile* file, FileOf(name));
  GDN_ASSIGN_OR_RETURN(const std::string_view data, WithPrefix(file->Bytes(name), PathOf(name)));
  const SafetensorsEntry& entry = file->entries().at(name);
  return RawView{.dtype = entry.dtype, .shape = entry.shape, .data = data};
}

absl::StatusOr<StoredTensor> CheckpointFiles::Fp8Tensor(const std::string& name, const SafetensorsFile& file) {
  StoredTensor tensor{.encoding = WeightFormat::kF8E4M3, .shape = file.entries().at(name).shape, .data = {}};
  GDN_ASSIGN_OR_RETURN(tensor.data, file.Bytes(name));
  if (tensor.shape.size() != 2) {
    return InvalidTensor(reason::kInvalidTensorDtype, name,
                         StrCat("is F8_E4M3 of shape ", ShapeToString(tensor.shape),
                                "; only matrices may be F8_E4M3: expected F32, F16 or BF16"));
  }
  const std::vector<int64_t> blocks = Fp8BlocksOf(tensor.shape);
  const std::string scales = StrCat(name, kScaleSuffix);
  if (!Contains(scales)) {
    return InvalidTensor(reason::kInvalidSpec, name,
                         StrCat("is F8_E4M3 and has no '", scales, "'; expected a scale for each ", kFp8Block, " x ",
                                kFp8Block, " weights, of shape ", ShapeToString(blocks)));
  }
  GDN_ASSIGN_OR_RETURN(const SafetensorsFile* scale_file, FileOf(scales));
  GDN_ASSIGN_OR_RETURN(tensor.scales, WithPrefix(scale_file->Tensor(scales), PathOf(scales)));
  if (tensor.scales.shape != blocks) {
    return InvalidTensor(
        reason::kInvalidTensorShape, scales,
        StrCat("has shape ", ShapeToString(tensor.scales.shape), "; expected ", ShapeToString(blocks),
               ", a scale for each ", kFp8Block, " x ", kFp8Block, " weights of ", ShapeToString(tensor.shape)));
  }
  return tensor;
}

}  // namespace gdn
