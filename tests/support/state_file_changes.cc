#include "tests/support/state_file_changes.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <utility>

namespace gdn {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kMetadata[] = "__metadata__";
constexpr size_t kPrefixBytes = 8;

// Entries that say nothing of the states.
const std::set<std::string>& Labels() {
  static const auto* labels =
      new std::set<std::string>{"created", "epoch", "family", "model", "numerics_id", "snapshot_id"};
  return *labels;
}

size_t BitsOf(const std::string& dtype) {
  static const auto* bits =
      new std::map<std::string, size_t>{{"F64", 64}, {"F32", 32}, {"BF16", 16}, {"F16", 16}, {"U8", 8}};
  return bits->at(dtype);
}

uint64_t BytesOf(const std::string& dtype, const std::vector<uint64_t>& shape) {
  uint64_t bytes = BitsOf(dtype) / 8;
  for (const uint64_t dim : shape) bytes *= dim;
  return bytes;
}

// Values for a leaf of JSON that holds `own`.
std::vector<Json> OtherValues(const Json& own, size_t long_bytes) {
  std::vector<Json> values = {nullptr,
                              true,
                              -1,
                              0,
                              1,
                              16,
                              65,
                              int64_t{1} << 31,
                              int64_t{1} << 53,
                              (int64_t{1} << 53) + 1,
                              std::numeric_limits<int64_t>::min(),
                              std::numeric_limits<uint64_t>::max(),
                              1e300,
                              "",
                              Json::array(),
                              Json::object()};
  if (own.is_number_integer()) {
    values.emplace_back(own.get<int64_t>() - 1);
    values.emplace_back(own.get<int64_t>() + 1);
  }
  if (own.is_string()) {
    const std::string text = own;
    values.insert(values.end(), {"x", text + "x", text.substr(0, text.size() / 2), std::string(64, 'x'),
                                 std::string(65, 'x'), std::string(long_bytes, 'x'), "a b", "a\nb",
                                 std::string(1, '\0'), "\xc3\xbc", std::string(32, '0')});
  }
  if (own.is_array()) {
    for (const Json& element : {Json(-2), Json(64), Json(std::numeric_limits<uint64_t>::max()), Json("x")}) {
      values.push_back(Json::array({element}));
    }
    values.emplace_back(std::vector<int>(65, 0));
  }
  return values;
}

// `member` is what is at one place of a JSON text; each is called with the whole text, changed.
void EachOther(const Json& whole, const Json::json_pointer& at, size_t long_bytes,
               const std::function<void(std::string, Json)>& add) {
  const Json& own = whole.at(at);
  if (!own.is_primitive() && !own.empty()) {
    for (const auto& [key, value] : own.items()) EachOther(whole, at / key, long_bytes, add);
  }
  if (at.empty()) return;
  for (const Json& other : OtherValues(own, long_bytes)) {
    Json changed = whole;
    changed.at(at) = other;
    const bool is_long = other.is_string() && other.get<std::string>().size() == long_bytes;
    add(at.to_string() + (is_long ? " is long" : " = " + other.dump().substr(0, 40)), std::move(changed));
  }
  Json without = whole;
  Json& parent = without.at(at.parent_pointer());
  if (!parent.is_object()) return;
  parent.erase(at.back());
  add(at.to_string() + " is not there", std::move(without));
}

std::vector<uint64_t> ShapeOf(const Json& entry) { return entry.at("shape").get<std::vector<uint64_t>>(); }

// Gives a tensor another dtype and shape; its data are cut, or lengthened with zeros, and what follows moves.
void Reshape(const std::string& name, const std::string& dtype, const std::vector<uint64_t>& shape, Json& header,
             std::string& data) {
  Json& entry = header.at(name);
  const uint64_t begin = entry.at("data_offsets").at(0);
  const uint64_t end = entry.at("data_offsets").at(1);
  const uint64_t bytes = BytesOf(dtype, shape);
  std::string own = data.substr(begin, end - begin);
  own.resize(bytes);
  data.replace(begin, end - begin, own);
  entry["dtype"] = dtype;
  entry["shape"] = shape;
  for (auto& [other, its] : header.items()) {
    if (other == kMetadata || other == name || its.at("data_offsets").at(0) < end) continue;
    for (Json& offset : its.at("data_offsets")) offset = offset.get<uint64_t>() - end + begin + bytes;
  }
  entry["data_offsets"] = {begin, begin + bytes};
}

std::vector<std::vector<uint64_t>> OtherShapes(const std::vector<uint64_t>& shape) {
  std::vector<std::vector<uint64_t>> shapes = {{0}, {}, {1}, {0, 0}};
  for (size_t i = 0; i < shape.size(); ++i) {
    for (const uint64_t dim : {uint64_t{0}, shape[i] / 2, shape[i] + 1, 2 * shape[i]}) {
      shapes.push_back(shape);
      shapes.back()[i] = dim;
    }
  }
  if (shape.size() == 1) {
    shapes.push_back({shape[0] / 2});
    shapes.push_back({shape[0] + 100000});
    shapes.push_back({1, shape[0]});
  } else {
    shapes.push_back({shape.rbegin(), shape.rend()});
    shapes.push_back({1});
    for (const uint64_t dim : shape) shapes.back()[0] *= dim;  // flat
  }
  return shapes;
}

}  // namespace

StateFileChanges::StateFileChanges(const std::string& file, size_t long_bytes) : long_bytes_(long_bytes) {
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file.data(), sizeof(header_bytes));
  header_ = Json::parse(file.substr(kPrefixBytes, header_bytes));
  data_ = file.substr(kPrefixBytes + header_bytes);
  Json& metadata = header_.at(kMetadata);
  for (const char* key : {"checksums", "header_checksum"}) metadata.erase(key);
  metadata["format_version"] = "1";
  for (const auto& [key, value] : metadata.items()) AddEntry(key);
  for (const auto& [name, entry] : header_.items()) {
    if (name != kMetadata) AddTensor(name);
  }
  const auto add = [this](const std::string& key, const std::string& value, const char* what = " is there") {
    Add(key + what, Of::kEntry, [=](Json& header, std::string&) { header[kMetadata][key] = value; });
  };
  add("unknown", std::string(long_bytes, 'x'), " is long");
  add("base_snapshot_id", std::string(32, '0'));
  add("base_dtype", "BF16");
  add("checksums", "{}");
  add("heads", R"({"first":0,"count":1,"total":2})");
  add("owner", "{}");
  add("layer.4095", R"({"token_count":1})");
}

std::string StateFileChanges::Assemble(const Json& header, const std::string& data) {
  const std::string text = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  const uint64_t bytes = text.size();
  return std::string(reinterpret_cast<const char*>(&bytes), sizeof(bytes)) + text + data;
}

std::string StateFileChanges::File(size_t index) const {
  Json header = header_;
  std::string data = data_;
  changes_[index].make(header, data);
  return Assemble(header, data);
}

void StateFileChanges::AddEntry(const std::string& key) {
  const Of of = Labels().count(key) != 0 ? Of::kLabel : Of::kEntry;
  const std::string own = header_.at(kMetadata).at(key);
  const auto add = [&](const std::string& what, const std::string& value) {
    Add(key + what, of, [=](Json& header, std::string&) { header[kMetadata][key] = value; });
  };
  Add(key + " is not there", of, [=](Json& header, std::string&) { header[kMetadata].erase(key); });
  for (const char* value : {"", "x", "-1", "+1", "0", "01", "1", "2", "5", "4097", "9007199254740992",
                            "9007199254740993", "18446744073709551616", "infinite-future", "{}", "[]", "null"}) {
    add(std::string(" = '") + value + "'", value);
  }
  add(" is long", std::string(long_bytes_, 'x'));
  add(" is binary", "\x01\x02\n\x7f");
  const Json json = Json::parse(own, /*cb=*/nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return;
  EachOther(json, Json::json_pointer(), long_bytes_,
            [&](const std::string& what, const Json& changed) { add(what, changed.dump(-1, ' ', true)); });
}

void StateFileChanges::AddTensor(const std::string& name) {
  const Json& entry = header_.at(name);
  const std::string dtype = entry.at("dtype");
  const std::vector<uint64_t> shape = ShapeOf(entry);
  for (const char* other : {"F32", "BF16", "F16", "U8", "F64"}) {
    if (other == dtype) continue;
    Add(name + " is " + other, Of::kTensor,
        [=](Json& header, std::string& data) { Reshape(name, other, shape, header, data); });
  }
  for (const std::vector<uint64_t>& other : OtherShapes(shape)) {
    if (other == shape) continue;
    Add(name + " is of shape " + Json(other).dump(), Of::kTensor,
        [=](Json& header, std::string& data) { Reshape(name, dtype, other, header, data); });
  }
  Add(name + " is not there", Of::kTensor, [=](Json& header, std::string& data) {
    Reshape(name, dtype, {0}, header, data);
    header.erase(name);
  });
  for (const int end : {0, 1}) {
    for (const uint64_t offset : {uint64_t{0}, uint64_t{1} << 40, std::numeric_limits<uint64_t>::max()}) {
      Add(name + " has the offset " + std::to_string(offset), Of::kTensor,
          [=](Json& header, std::string&) { header[name]["data_offsets"][static_cast<size_t>(end)] = offset; });
    }
  }
  // NaN, infinities, the largest, one, and the least there is: as the first element and as all of them.
  const uint64_t begin = entry.at("data_offsets").at(0);
  const uint64_t end = entry.at("data_offsets").at(1);
  for (const uint32_t bits :
       {0xffc00000u, 0x7f800000u, 0xff800000u, 0x7f7fffffu, 0x3f800000u, 0x00000001u, 0x80000000u}) {
    for (const uint64_t last : {begin + sizeof(bits), end}) {
      if (last > end) continue;
      Add(name + " holds " + std::to_string(bits), Of::kValues, [=](Json&, std::string& data) {
        for (uint64_t at = begin; at + sizeof(bits) <= last; at += sizeof(bits)) {
          std::memcpy(data.data() + at, &bits, sizeof(bits));
        }
      });
    }
  }
}

std::string FilledStateFile(const std::string& file, char byte) {
  const StateFileChanges changes(file);
  std::string filled = changes.Unchanged();
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, filled.data(), sizeof(header_bytes));
  std::fill(filled.begin() + static_cast<std::ptrdiff_t>(kPrefixBytes + header_bytes), filled.end(), byte);
  return filled;
}

}  // namespace gdn
