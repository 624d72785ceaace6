#include "base/files/safetensors_header.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/name_rules.h"
#include "base/string_cat.h"
#include "nlohmann/json.hpp"

namespace gdn {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kFields[] = {"dtype", "shape", "data_offsets"};
constexpr size_t kShownNameBytes = 256;
constexpr size_t kShownMessageBytes = 1024;

// Takes the events of the parser. Each returns false to end it, with `status()` not OK.
class HeaderReader final : public nlohmann::json_sax<Json> {
 public:
  const absl::Status& status() const { return status_; }
  SafetensorsHeaderFields Take() { return std::move(fields_); }

  bool null() override { return Unexpected(); }
  bool boolean(bool /*value*/) override { return Unexpected(); }
  bool number_integer(number_integer_t /*value*/) override { return Unexpected(); }
  bool number_float(number_float_t /*value*/, const string_t& /*text*/) override { return Unexpected(); }
  bool binary(binary_t& /*value*/) override { return Unexpected(); }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape && value <= static_cast<uint64_t>(INT64_MAX)) {
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets && offsets_.size() < 2) {
      offsets_.push_back(value);
      return true;
    }
    return Unexpected();
  }

  bool string(string_t& text) override {
    if (place_ == Place::kMetadataValue) {
      fields_.metadata.emplace(std::move(key_), std::move(text));
      place_ = Place::kMetadata;
      return true;
    }
    if (place_ == Place::kDType) {
      entry_.dtype = std::move(text);
      place_ = Place::kTensor;
      return true;
    }
    return Unexpected();
  }

  bool start_object(size_t /*elements*/) override {
    if (place_ == Place::kStart) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTopValue) {
      place_ = name_ == kMetadataKey ? Place::kMetadata : Place::kTensor;
      entry_ = {};
      fields_seen_ = 0;
    } else {
      return Unexpected();
    }
    return true;
  }

  bool key(string_t& key) override {
    if (place_ == Place::kTop) {
      const bool twice = key == kMetadataKey ? std::exchange(has_metadata_, true) : fields_.entries.contains(key);
      if (twice) return Twice(key);
      name_ = std::move(key);
      place_ = Place::kTopValue;
      return true;
    }
    if (place_ == Place::kMetadata) {
      if (fields_.metadata.contains(key)) return Twice(key);
      key_ = std::move(key);
      place_ = Place::kMetadataValue;
      return true;
    }
    static constexpr Place kPlaces[] = {Place::kDType, Place::kBeforeShape, Place::kBeforeOffsets};
    for (int i = 0; i < 3; ++i) {
      if (key != kFields[i]) continue;
      if ((fields_seen_ >> i & 1) != 0) return Twice(key);
      fields_seen_ |= 1 << i;
      place_ = kPlaces[i];
      return true;
    }
    return FailTensor(kNotATensor);
  }

  bool end_object() override {
    if (place_ == Place::kMetadata) {
      place_ = Place::kTop;
    } else if (place_ == Place::kTensor) {
      if (fields_seen_ != 7) return FailTensor(kNotATensor);
      if (!CheckEntry()) return false;
      fields_.entries.emplace(std::move(name_), std::move(entry_));
      place_ = Place::kTop;
    }
    return true;
  }

  bool start_array(size_t /*elements*/) override {
    if (place_ == Place::kBeforeShape) {
      place_ = Place::kShape;
    } else if (place_ == Place::kBeforeOffsets) {
      place_ = Place::kOffsets;
      offsets_.clear();
    } else {
      return Unexpected();
    }
    return true;
  }

  bool end_array() override {
    if (place_ == Place::kOffsets && offsets_.size() != 2) return Unexpected();
    place_ = Place::kTensor;
    return true;
  }

  bool parse_error(size_t position, const std::string& /*token*/, const Json::exception& /*error*/) override {
    return Fail(DamagedSafetensors(StrCat("its header is not a JSON object: it is no JSON at byte ", position)));
  }

 private:
  enum class Place {
    kStart,
    kTop,       // between the root object's keys
    kTopValue,  // behind one of them
    kMetadata,
    kMetadataValue,
    kTensor,  // between a tensor's fields
    kDType,
    kBeforeShape,
    kShape,
    kBeforeOffsets,
    kOffsets,
  };
  static constexpr std::string_view kNotATensor = "does not consist of dtype, shape and data_offsets";

  bool Fail(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
    return false;
  }
  bool FailTensor(std::string_view message) { return Fail(DamagedSafetensorsTensor(name_, message)); }
  bool Twice(std::string_view key) {
    return Fail(DamagedSafetensors(StrCat("its header has the key '", key, "' twice")));
  }

  // Refuses a value of a kind that may not stand here.
  bool Unexpected() {
    switch (place_) {
      case Place::kTopValue:
        if (name_ == kMetadataKey) return Fail(DamagedSafetensors("__metadata__ is not an object"));
        return FailTensor(kNotATensor);
      case Place::kMetadataValue:
        return Fail(DamagedSafetensors(StrCat("__metadata__ entry '", key_, "' is not a string")));
      case Place::kDType:
        return FailTensor("has a dtype that is not a string");
      case Place::kBeforeShape:
        return FailTensor("has a shape that is not an array");
      case Place::kShape:
        return FailTensor("has a shape with something other than non-negative integers");
      case Place::kBeforeOffsets:
      case Place::kOffsets:
        return FailTensor("has data_offsets that are not two non-negative integers");
      default:
        return Fail(DamagedSafetensors("its header is not a JSON object"));
    }
  }

  // A tensor by itself; its size follows from its dtype and shape.
  bool CheckEntry() {
    entry_.begin = offsets_[0];
    entry_.end = offsets_[1];
    const absl::StatusOr<uint64_t> size = SafetensorsTensorBytes(entry_.dtype, entry_.shape);
    if (!size.ok()) return FailTensor(std::string(size.status().message()));
    if (entry_.begin > entry_.end) {
      return FailTensor(StrCat("ends at byte ", entry_.end, ", before it begins at ", entry_.begin));
    }
    if (entry_.end - entry_.begin != *size) {
      return FailTensor(StrCat("has ", entry_.end - entry_.begin, " bytes; its shape ", ShapeToString(entry_.shape),
                               " of ", entry_.dtype, " needs ", *size));
    }
    return true;
  }

  absl::Status status_;
  Place place_ = Place::kStart;
  SafetensorsHeaderFields fields_;
  bool has_metadata_ = false;
  std::string name_;  // the tensor, or __metadata__
  std::string key_;   // of the metadata
  SafetensorsEntry entry_;
  int fields_seen_ = 0;  // a bit for each of kFields
  std::vector<uint64_t> offsets_;
};

}  // namespace

absl::Status DamagedSafetensors(std::string_view message) {
  return MakeError(absl::StatusCode::kDataLoss, reason::kInvalidStateFile,
                   StrCat("not a valid safetensors file: ", Shown(message, kShownMessageBytes)));
}

absl::Status DamagedSafetensorsTensor(const std::string& name, std::string_view message) {
  const std::string shown = Shown(name, kShownNameBytes);
  return WithMetadata(DamagedSafetensors(StrCat("tensor '", shown, "' ", message)), "tensor", shown);
}

absl::StatusOr<SafetensorsHeaderFields> ReadSafetensorsHeader(std::string_view text) {
  HeaderReader reader;
  const bool read = Json::sax_parse(text.begin(), text.end(), &reader);
  if (!reader.status().ok()) return reader.status();
  if (!read) return DamagedSafetensors("its header is not a JSON object");
  return reader.Take();
}

}  // namespace gdn
