// A folder that looks like a node's /sys, /dev, /proc and /etc, for tests of `gdnctl doctor`.
//
// Thread safety: for one thread. Ownership: removes its folder in the end.
//
//   PlantedNode node;                 // a complete node with an MI50
//   node.Remove("dev/kfd");
//   const NodeFacts facts = ReadNode({.root = node.root(), .identity = {.uid = 1000, .groups = {1000}}});
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/temp_folder.h"

namespace gdn::doctor {

inline constexpr int64_t kMi50Bytes = int64_t{16} << 30;

struct PlantedGpu {
  int kfd_node = 1;
  uint32_t gfx_target_version = 90006;
  uint32_t pci_device = 0x66a1;
  int bus = 3;  // 0000:03:00.0
  int render_minor = 128;
  int64_t memory_bytes = kMi50Bytes;
  int64_t used_bytes = int64_t{16} << 20;
  uint64_t unique_id = 0x1122334455667788;
};

class PlantedNode {
 public:
  // Makes a node with the driver, one processor, one GPU, device files that anyone may open, groups and a HIP runtime.
  explicit PlantedNode(const PlantedGpu& gpu = {});

  const std::string& root() const { return folder_.path(); }

  // Paths are relative to the root; missing folders are made.
  void Write(const std::string& path, const std::string& text);
  void Link(const std::string& path, const std::string& target);
  void Remove(const std::string& path);
  void SetMode(const std::string& path, unsigned mode);
  // Returns the group of a device file. (Tests can set it only to a group of their own process.)
  uint32_t GroupOf(const std::string& path) const;

  // Adds another GPU: topology, PCI function and render node.
  void AddGpu(const PlantedGpu& gpu);

 private:
  const TempFolder folder_;
};

}  // namespace gdn::doctor
