// Makes variants of a state file, each with one field of the header changed to a boundary or absurd value.
//
// It walks the header as JSON, so fields that are added to the format later are changed too. A variant stays a valid
// safetensors file, unless the change is about that: offsets and data follow changed shapes. Checksums are removed, as
// version 1 allows, because they would hide every other check. No variant is left out because the file has its value by
// chance (a time): two files of one session have the same variants in the same order.
// Thread safety: constant after construction. Ownership: plain values.
//
//   const StateFileChanges changes(file);
//   for (size_t i = 0; i < changes.size(); ++i) Import(changes.File(i));
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace gdn {

class StateFileChanges {
 public:
  // The kind of data that a variant changes.
  enum class Of {
    kLabel,   // an entry that does not describe states: times, ids of snapshots, the model's name
    kEntry,   // any other entry of the metadata
    kTensor,  // a tensor's dtype, shape, offsets or existence
    kValues,  // only the values of a tensor
  };

  // For each text in the header there is also a variant with a text of `long_bytes` bytes, whose name ends with " is
  // long".
  explicit StateFileChanges(const std::string& file, size_t long_bytes = 3000);

  size_t size() const { return changes_.size(); }
  bool IsLong(size_t index) const { return changes_[index].name.ends_with(" is long"); }
  // Returns the change's name, such as "layer.0/reply/token_count = -1".
  const std::string& Name(size_t index) const { return changes_[index].name; }
  Of What(size_t index) const { return changes_[index].of; }
  // Returns the changed file with this index.
  std::string File(size_t index) const;
  // Returns the original file without its checksums.
  std::string Unchanged() const { return Assemble(header_, data_); }

 private:
  using Json = nlohmann::ordered_json;
  struct Change {
    std::string name;
    Of of;
    std::function<void(Json& header, std::string& data)> make;
  };

  static std::string Assemble(const Json& header, const std::string& data);
  void AddTensor(const std::string& name);
  void AddEntry(const std::string& key);
  void Add(std::string name, Of of, std::function<void(Json& header, std::string& data)> make) {
    changes_.push_back({std::move(name), of, std::move(make)});
  }

  const size_t long_bytes_;
  Json header_;
  std::string data_;
  std::vector<Change> changes_;
};

// Returns `file` without checksums, and with every byte of its F32 and U8 tensors set to `byte`.
std::string FilledStateFile(const std::string& file, char byte);

}  // namespace gdn
