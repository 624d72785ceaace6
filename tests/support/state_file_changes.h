// State files with one field changed: each field of the header, with values at its boundaries and absurd ones.
//
// The header is walked as JSON, so a field that is added to the format is changed too. A changed file is still a
// safetensors file unless that is what is changed: offsets follow shapes, and the data are cut or lengthened with them.
// Checksums go, as version 1 allows, because they would hide every other check.
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
  // The part of the file that is changed.
  enum class Of {
    kLabel,   // an entry that says nothing of the states: times, ids of snapshots, the model's name
    kEntry,   // any other entry of the metadata
    kTensor,  // a tensor's dtype, shape, place, or that it is there
    kValues,  // only the values of a tensor
  };

  // Each text is also as long as `long_bytes`, in a change whose name ends with " is long".
  explicit StateFileChanges(const std::string& file, size_t long_bytes = 3000);

  size_t size() const { return changes_.size(); }
  bool IsLong(size_t index) const { return changes_[index].name.ends_with(" is long"); }
  // "layer.0/reply/token_count = -1"
  const std::string& Name(size_t index) const { return changes_[index].name; }
  Of What(size_t index) const { return changes_[index].of; }
  std::string File(size_t index) const;
  // The file without its checksums, and else as it was.
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

// `file` without checksums, and with every byte of its F32 and U8 tensors `byte`.
std::string FilledStateFile(const std::string& file, char byte);

}  // namespace gdn
