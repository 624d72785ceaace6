#include "server/checkpoint/gguf_file.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "base/error.h"
#include "base/files/json_fault.h"
#include "base/status_macros.h"
#include "base/string_cat.h"
#include "base/tensor_view.h"
#include "server/checkpoint/tensor_errors.h"

namespace gdn {
namespace {

// The types of keys' values, by their numbers in the format.
enum ValueType : uint32_t { kU8, kI8, kU16, kI16, kU32, kI32, kF32, kBool, kString, kArray, kU64, kI64, kF64 };
constexpr uint64_t kValueBytes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};  // 0: not fixed
constexpr uint32_t kValueTypes = 13;

constexpr std::string_view kMagic = "GGUF";
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = 1 << 16;
constexpr int64_t kMaxParts = 9999;

struct TypeRow {
  GgmlType type;
  const char* name;
  GgmlBlock block;
};
constexpr TypeRow kTypes[] = {
    {GgmlType::kF32, "F32", {1, 4}},           {GgmlType::kF16, "F16", {1, 2}},
    {GgmlType::kQ4_0, "Q4_0", {32, 18}},       {GgmlType::kQ4_1, "Q4_1", {32, 20}},
    {GgmlType::kQ5_0, "Q5_0", {32, 22}},       {GgmlType::kQ5_1, "Q5_1", {32, 24}},
    {GgmlType::kQ8_0, "Q8_0", {32, 34}},       {GgmlType::kQ8_1, "Q8_1", {32, 36}},
    {GgmlType::kQ2_K, "Q2_K", {256, 84}},      {GgmlType::kQ3_K, "Q3_K", {256, 110}},
    {GgmlType::kQ4_K, "Q4_K", {256, 144}},     {GgmlType::kQ5_K, "Q5_K", {256, 176}},
    {GgmlType::kQ6_K, "Q6_K", {256, 210}},     {GgmlType::kQ8_K, "Q8_K", {256, 292}},
    {GgmlType::kIQ4_NL, "IQ4_NL", {32, 18}},   {GgmlType::kIQ3_S, "IQ3_S", {256, 110}},
    {GgmlType::kIQ4_XS, "IQ4_XS", {256, 136}}, {GgmlType::kI8, "I8", {1, 1}},
    {GgmlType::kI16, "I16", {1, 2}},           {GgmlType::kI32, "I32", {1, 4}},
    {GgmlType::kI64, "I64", {1, 8}},           {GgmlType::kF64, "F64", {1, 8}},
    {GgmlType::kBF16, "BF16", {1, 2}},
};

const TypeRow* FindType(GgmlType type) {
  for (const TypeRow& row : kTypes) {
    if (row.type == type) return &row;
  }
  return nullptr;
}

absl::Status Damaged(std::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile, StrCat("not a whole GGUF file: ", message));
}

absl::Status InvalidKey(const std::string& key, std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec, StrCat("GGUF key '", key, "' ", message),
                   {{"field", key}});
}

template <typename T>
T Load(const char* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

}  // namespace

std::string GgmlTypeName(GgmlType type) {
  const TypeRow* row = FindType(type);
  return row != nullptr ? row->name : StrCat("type ", static_cast<uint32_t>(type));
}

std::optional<WeightFormat> WeightFormatOf(GgmlType type) {
  const TypeRow* row = FindType(type);
  for (const WeightFormat format : kWeightFormats) {
    if (row != nullptr && WeightFormatName(format) == row->name) return format;
  }
  return std::nullopt;
}

std::optional<GgmlBlock> GgmlBlockOf(GgmlType type) {
  const TypeRow* row = FindType(type);
  if (row == nullptr) return std::nullopt;
  return row->block;
}

// Reads from the front of the bytes that are left. Allocates no more than the bytes contain.
class GgufFile::Parser {
 public:
  explicit Parser(std::string_view bytes) : all_(bytes), left_(bytes) {}

  absl::StatusOr<GgufFile> Run() {
    if (IsLfsPointer(left_)) return Damaged(kFetchLfsFile);
    if (!left_.starts_with(kMagic)) return Damaged("it does not begin with 'GGUF'");
    left_.remove_prefix(kMagic.size());
    GDN_ASSIGN_OR_RETURN(const uint32_t version, Number<uint32_t>());
    if (version != 2 && version != 3) {
      return MakeError(absl::StatusCode::kInvalidArgument, reason::kInvalidSpec,
                       StrCat("GGUF version ", version, " is not read; expected 2 or 3, little-endian"));
    }
    GDN_ASSIGN_OR_RETURN(const uint64_t tensors, Number<uint64_t>());
    GDN_ASSIGN_OR_RETURN(const uint64_t keys, Number<uint64_t>());
    for (uint64_t i = 0; i < keys; ++i) GDN_RETURN_IF_ERROR(ReadKey());
    for (uint64_t i = 0; i < tensors; ++i) GDN_RETURN_IF_ERROR(ReadTensor());
    GDN_RETURN_IF_ERROR(PlaceTensors());
    return std::move(file_);
  }

 private:
  template <typename T>
  absl::StatusOr<T> Number() {
    GDN_ASSIGN_OR_RETURN(const std::string_view bytes, Take(sizeof(T)));
    return Load<T>(bytes.data());
  }

  absl::StatusOr<std::string_view> Take(uint64_t bytes) {
    if (bytes > left_.size()) return Damaged(StrCat("it ends in its header, after ", all_.size(), " bytes"));
    const std::string_view taken = left_.substr(0, bytes);
    left_.remove_prefix(bytes);
    return taken;
  }

  absl::StatusOr<std::string_view> String() {
    GDN_ASSIGN_OR_RETURN(const uint64_t bytes, Number<uint64_t>());
    return Take(bytes);
  }

  absl::Status ReadKey() {
    GDN_ASSIGN_OR_RETURN(const std::string_view key, String());
    Value value;
    GDN_ASSIGN_OR_RETURN(value.type, Number<uint32_t>());
    if (value.type == kString) {
      GDN_ASSIGN_OR_RETURN(value.bytes, String());
    } else if (value.type == kArray) {
      GDN_RETURN_IF_ERROR(ReadArray(key, value));
    } else if (value.type < kValueTypes) {
      GDN_ASSIGN_OR_RETURN(value.bytes, Take(kValueBytes[value.type]));
    } else {
      return Damaged(StrCat("key '", key, "' has a value of type ", value.type));
    }
    if (file_.values_.emplace(key, value).second) return absl::OkStatus();
    return Damaged(StrCat("key '", key, "' is there twice"));
  }

  absl::Status ReadArray(std::string_view key, Value& value) {
    GDN_ASSIGN_OR_RETURN(value.element_type, Number<uint32_t>());
    GDN_ASSIGN_OR_RETURN(value.count, Number<uint64_t>());
    if (value.element_type >= kValueTypes || value.element_type == kArray) {
      return Damaged(StrCat("key '", key, "' is an array of type ", value.element_type));
    }
    const std::string_view begin = left_;
    if (value.element_type == kString) {
      for (uint64_t i = 0; i < value.count; ++i) GDN_RETURN_IF_ERROR(String().status());
    } else {
      const uint64_t each = kValueBytes[value.element_type];
      if (value.count > left_.size() / each) return Damaged(StrCat("it ends in the array of key '", key, "'"));
      GDN_RETURN_IF_ERROR(Take(value.count * each).status());
    }
    value.bytes = begin.substr(0, begin.size() - left_.size());
    return absl::OkStatus();
  }

  absl::Status ReadTensor() {
    Place place;
    GDN_ASSIGN_OR_RETURN(const std::string_view name, String());
    place.name = std::string(name);
    GDN_ASSIGN_OR_RETURN(const uint32_t dims, Number<uint32_t>());
    if (dims < 1 || dims > kMaxDims) return Damaged(StrCat("tensor '", name, "' has ", dims, " dimensions"));
    GgufTensor tensor;
    for (uint32_t i = 0; i < dims; ++i) {
      GDN_ASSIGN_OR_RETURN(const uint64_t dim, Number<uint64_t>());
      if (dim > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Damaged(StrCat("tensor '", name, "' has a dimension of ", dim));
      }
      tensor.shape.insert(tensor.shape.begin(), static_cast<int64_t>(dim));
    }
    GDN_ASSIGN_OR_RETURN(const uint32_t type, Number<uint32_t>());
    tensor.type = static_cast<GgmlType>(type);
    GDN_ASSIGN_OR_RETURN(place.begin, Number<uint64_t>());
    const auto elements = CheckedElementCount(tensor.shape);
    if (!elements.ok()) return Damaged(StrCat("tensor '", name, "' has shape ", ShapeToString(tensor.shape)));
    if (const auto block = GgmlBlockOf(tensor.type)) {
      if (tensor.shape.back() % block->elements != 0) {
        return Damaged(StrCat("tensor '", name, "' has rows of ", tensor.shape.back(),
                              " elements, not whole blocks of ", block->elements, " (", GgmlTypeName(tensor.type),
                              ")"));
      }
      // This fits: an element has at most 8 bytes, and CheckedElementCount has checked the number of elements.
      place.bytes = static_cast<uint64_t>(*elements / block->elements * block->bytes);
    }
    if (!file_.tensors_.emplace(place.name, std::move(tensor)).second) {
      return Damaged(StrCat("tensor '", name, "' is there twice"));
    }
    places_.push_back(std::move(place));
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> Alignment() const {
    constexpr char kKey[] = "general.alignment";
    if (!file_.Has(kKey)) return kDefaultAlignment;
    GDN_ASSIGN_OR_RETURN(const int64_t alignment, file_.Int(kKey));
    if (alignment >= 1 && alignment <= static_cast<int64_t>(kMaxAlignment)) return static_cast<uint64_t>(alignment);
    return InvalidKey(kKey, StrCat("is ", alignment, "; expected 1 to ", kMaxAlignment));
  }

  // The data section begins at the next multiple of the alignment. So does every tensor in it.
  absl::Status PlaceTensors() {
    GDN_ASSIGN_OR_RETURN(const uint64_t alignment, Alignment());
    const uint64_t header = all_.size() - left_.size();
    const uint64_t begin = (header + alignment - 1) / alignment * alignment;
    const std::string_view data = begin < all_.size() ? all_.substr(begin) : std::string_view();
    std::sort(places_.begin(), places_.end(), [](const Place& a, const Place& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    for (const Place& place : places_) {
      if (place.begin % alignment != 0) {
        return Damaged(StrCat("tensor '", place.name, "' begins at ", place.begin, ", no multiple of ", alignment));
      }
      if (place.begin < end) return Damaged(StrCat("tensor '", place.name, "' overlaps the one before it"));
      if (place.begin > data.size() || place.bytes > data.size() - place.begin) {
        return Damaged(StrCat("tensor '", place.name, "' has bytes [", place.begin, ", ", place.begin + place.bytes,
                              ") of the data section, which has ", data.size()));
      }
      end = place.begin + place.bytes;
      file_.tensors_.at(place.name).data = data.substr(place.begin, place.bytes);
    }
    return absl::OkStatus();
  }

  struct Place {
    std::string name;
    uint64_t begin = 0;  // offset in the data section
    uint64_t bytes = 0;
  };

  const std::string_view all_;
  std::string_view left_;
  GgufFile file_;
  std::vector<Place> places_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(std::string_view bytes) { return Parser(bytes).Run(); }

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  const auto open = [](const std::string& name) -> absl::StatusOr<GgufFile> {
    GDN_ASSIGN_OR_RETURN(MappedFile mapped, MappedFile::Open(name));
    GDN_ASSIGN_OR_RETURN(GgufFile file, WithPrefix(Parse(mapped.bytes()), StrCat("'", name, "'")));
    file.files_.push_back(std::move(mapped));
    return file;
  };
  GDN_ASSIGN_OR_RETURN(GgufFile file, open(path));
  if (!file.Has("split.count")) return file;
  GDN_ASSIGN_OR_RETURN(const int64_t parts, file.Int("split.count"));
  if (parts == 1 || parts == 0) return file;
  const std::string ending = absl::StrFormat("-%05d-of-%05d.gguf", 1, parts);
  if (parts < 0 || parts > kMaxParts || !path.ends_with(ending)) {
    return InvalidKey("split.count",
                      StrCat("is ", parts, " in '", path, "'; expected the first part, with its name as it was split (",
                             ending, ")"));
  }
  const std::string stem = path.substr(0, path.size() - ending.size());
  for (int64_t number = 1; number < parts; ++number) {
    GDN_ASSIGN_OR_RETURN(GgufFile part, open(StrCat(stem, absl::StrFormat("-%05d-of-%05d.gguf", number + 1, parts))));
    GDN_RETURN_IF_ERROR(file.Join(std::move(part), number, parts));
  }
  if (file.Has("split.tensors.count")) {
    GDN_ASSIGN_OR_RETURN(const int64_t tensors, file.Int("split.tensors.count"));
    if (tensors != static_cast<int64_t>(file.tensors_.size())) {
      return Damaged(
          StrCat("'", path, "' and its other parts have ", file.tensors_.size(), " tensors; the first says ", tensors));
    }
  }
  return file;
}

absl::Status GgufFile::Join(GgufFile part, int64_t number, int64_t parts) {
  const std::string& path = part.files_.front().path();
  GDN_ASSIGN_OR_RETURN(const int64_t its_number, part.Int("split.no"));
  GDN_ASSIGN_OR_RETURN(const int64_t its_parts, part.Int("split.count"));
  if (its_number != number || its_parts != parts) {
    return Damaged(StrCat("'", path, "' says that it is part ", its_number + 1, " of ", its_parts));
  }
  for (auto& [name, tensor] : part.tensors_) {
    if (!tensors_.emplace(name, std::move(tensor)).second) {
      return Damaged(StrCat("tensor '", name, "' of '", path, "' is in another part too"));
    }
  }
  files_.push_back(std::move(part.files_.front()));
  return absl::OkStatus();
}

absl::StatusOr<const GgufFile::Value*> GgufFile::Find(const std::string& key) const {
  const auto it = values_.find(key);
  if (it != values_.end()) return &it->second;
  return WithMetadata(absl::NotFoundError(StrCat("GGUF key '", key, "' is missing")), "field", key);
}

bool GgufFile::IsArray(const std::string& key) const {
  const auto it = values_.find(key);
  return it != values_.end() && it->second.type == kArray;
}

std::vector<std::string_view> GgufFile::KeysUnder(const std::string& prefix) const {
  std::vector<std::string_view> keys;
  for (auto it = values_.lower_bound(prefix); it != values_.end() && it->first.starts_with(prefix); ++it) {
    keys.push_back(it->first);
  }
  return keys;
}

std::optional<int64_t> GgufFile::IntOf(uint32_t type, const char* at) {
  if (type == kU8) return Load<uint8_t>(at);
  if (type == kI8) return Load<int8_t>(at);
  if (type == kU16) return Load<uint16_t>(at);
  if (type == kI16) return Load<int16_t>(at);
  if (type == kU32) return Load<uint32_t>(at);
  if (type == kI32) return Load<int32_t>(at);
  if (type == kI64) return Load<int64_t>(at);
  if (type == kU64 && Load<int64_t>(at) >= 0) return Load<int64_t>(at);  // others are too large
  return std::nullopt;
}

absl::StatusOr<int64_t> GgufFile::Int(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (const auto number = IntOf(value->type, value->bytes.data())) return *number;
  return InvalidKey(key, "is not an integer that can be read");
}

absl::StatusOr<std::vector<int64_t>> GgufFile::Ints(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  std::vector<int64_t> ints;
  const uint64_t each = value->type == kArray ? kValueBytes[value->element_type] : 0;
  for (uint64_t i = 0; each != 0 && i < value->count; ++i) {
    const auto number = IntOf(value->element_type, value->bytes.data() + i * each);
    if (!number.has_value()) break;
    ints.push_back(*number);
  }
  if (value->type == kArray && ints.size() == value->count) return ints;
  return InvalidKey(key, "is not an array of integers that can be read");
}

absl::StatusOr<double> GgufFile::Float(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type == kF32) return Load<float>(value->bytes.data());
  if (value->type == kF64) return Load<double>(value->bytes.data());
  return InvalidKey(key, "is not a floating-point number");
}

absl::StatusOr<std::string_view> GgufFile::Text(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type == kString) return value->bytes;
  return InvalidKey(key, "is not a string");
}

absl::StatusOr<bool> GgufFile::Bool(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type == kBool) return value->bytes[0] != '\0';
  return InvalidKey(key, "is not a bool");
}

absl::StatusOr<std::vector<bool>> GgufFile::Bools(const std::string& key) const {
  GDN_ASSIGN_OR_RETURN(const Value* value, Find(key));
  if (value->type != kArray || value->element_type != kBool) return InvalidKey(key, "is not an array of bool");
  std::vector<bool> bools;
  for (const char each : value->bytes) bools.push_back(each != 0);
  return bools;
}

}  // namespace gdn
