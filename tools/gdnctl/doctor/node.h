// Reads what a node has for the GPU backend from /sys and /dev: driver, device files, cards and GPUs.
//
// Every path is under `root`, so tests can use a prepared folder. Facts that cannot be read are absent and no error;
// the checks (checks.h) decide what their absence means.
// Thread safety: free functions. Ownership: plain values.
//
//   const NodeFacts facts = ReadNode({.root = "/", .identity = ProcessIdentity()});
//   for (const GpuNode& gpu : facts.gpus) absl::PrintF("%s\n", gpu.gfx);  // "gfx906"
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace gdn::doctor {

// The user and groups of the process that wants to use the devices.
struct Identity {
  uid_t uid = 0;
  std::set<gid_t> groups;  // primary and supplementary group ids
};
Identity ProcessIdentity();

struct NodeOptions {
  std::string root = "/";
  Identity identity;
  // Returns errno of opening a device file for reading and writing; 0 if it opens. nullptr: really opens the file.
  std::function<int(const std::string& path)> open_device = nullptr;
};

struct DeviceFile {
  std::string path;  // as on the node, without the root: "/dev/kfd"
  bool exists = false;
  uid_t owner = 0;
  gid_t group = 0;
  mode_t mode = 0;         // permission bits
  bool permitted = false;  // owner, group and mode allow the identity to open it
  int open_error = 0;      // if permitted: errno of opening it; 0 if it opens
  bool usable() const { return exists && permitted && open_error == 0; }
};

// An AMD display or accelerator function on the PCI bus.
struct PciCard {
  std::string address;  // "0000:03:00.0"
  uint32_t device_id = 0;
  std::string driver = {};  // "amdgpu", "vfio-pci"; empty: no driver is bound
};

// A GPU of the KFD topology.
struct GpuNode {
  int kfd_node = 0;
  std::string gfx;           // "gfx906"
  int64_t memory_bytes = 0;  // size of the device's own memory banks
  int64_t used_bytes = -1;   // -1: the driver does not report it
  std::string pci_address;   // "0000:03:00.0"
  uint32_t device_id = 0;    // PCI device id
  std::string link;          // "8.0 GT/s PCIe x16"; may be empty
  int render_minor = -1;     // number of /dev/dri/renderD<minor>; -1: none
  uint64_t unique_id = 0;    // 0: none
  // Returns the GPU's own file among `files`; nullptr if it is not there.
  const DeviceFile* render_node(const std::vector<DeviceFile>& files) const;
};

struct NodeFacts {
  std::string kernel_release;
  bool driver_loaded = false;
  std::string driver_version;  // version of an out-of-tree driver; the kernel's own driver has none
  std::vector<PciCard> cards;
  DeviceFile kfd;
  std::vector<DeviceFile> render_files;
  bool topology_exists = false;
  int unreadable_nodes = 0;  // topology nodes that cannot be read, as in a container without these devices
  std::vector<GpuNode> gpus;
  Identity identity;
  std::map<gid_t, std::string> group_names;
};

NodeFacts ReadNode(const NodeOptions& options);

// Returns "gfx906" for 90006 and "gfx90a" for 90010; "" for 0. The number has two decimal digits each for major, minor
// and stepping; the name has minor and stepping in hexadecimal.
std::string GfxName(uint32_t gfx_target_version);
// Returns "Instinct MI50 / MI60" for the PCI ids of supported cards; "" for others.
std::string CardName(uint32_t pci_device_id);

}  // namespace gdn::doctor
