#include "tests/tools/gdnctl/planted_node.h"

#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_format.h"
#include "gtest/gtest.h"

namespace gdn::doctor {

namespace fs = std::filesystem;

PlantedNode::PlantedNode(const PlantedGpu& gpu) {
  Write("proc/sys/kernel/osrelease", "6.1.0-35-amd64\n");
  Write("sys/module/amdgpu/initstate", "live\n");
  Write("etc/group", "root:x:0:\nvideo:x:44:\nrender:x:109:\n");
  Write("dev/kfd", "");
  const std::string processor = "sys/class/kfd/kfd/topology/nodes/0";
  Write(processor + "/properties", "cpu_cores_count 16\nsimd_count 0\ngfx_target_version 0\n");
  Write(processor + "/mem_banks/0/properties", "heap_type 0\nsize_in_bytes 68719476736\n");
  AddGpu(gpu);
  Write("usr/lib/x86_64-linux-gnu/libamdhip64.so.5.2.21153", "");
  Link("usr/lib/x86_64-linux-gnu/libamdhip64.so.5", "libamdhip64.so.5.2.21153");
}

void PlantedNode::Write(const std::string& path, const std::string& text) {
  const fs::path file = fs::path(root()) / path;
  fs::create_directories(file.parent_path());
  std::ofstream(file) << text;
  SetMode(path, 0666);
}

void PlantedNode::Link(const std::string& path, const std::string& target) {
  const fs::path file = fs::path(root()) / path;
  fs::create_directories(file.parent_path());
  fs::remove(file);
  fs::create_symlink(target, file);
}

void PlantedNode::Remove(const std::string& path) { EXPECT_GT(fs::remove_all(fs::path(root()) / path), 0u) << path; }

void PlantedNode::SetMode(const std::string& path, unsigned mode) {
  EXPECT_EQ(chmod((fs::path(root()) / path).c_str(), mode), 0) << path;
}

uint32_t PlantedNode::GroupOf(const std::string& path) const {
  struct stat file = {};
  EXPECT_EQ(stat((fs::path(root()) / path).c_str(), &file), 0) << path;
  return file.st_gid;
}

void PlantedNode::AddGpu(const PlantedGpu& gpu) {
  const std::string node = absl::StrFormat("sys/class/kfd/kfd/topology/nodes/%d", gpu.kfd_node);
  Write(node + "/properties",
        absl::StrFormat("cpu_cores_count 0\nsimd_count 240\ngfx_target_version %d\nvendor_id 4098\ndevice_id %d\n"
                        "location_id %d\ndomain 0\ndrm_render_minor %d\nunique_id %d\nlocal_mem_size 0\n",
                        gpu.gfx_target_version, gpu.pci_device, gpu.bus << 8, gpu.render_minor, gpu.unique_id));
  Write(node + "/mem_banks/0/properties",
        absl::StrFormat("heap_type 1\nsize_in_bytes %d\nflags 0\n", gpu.memory_bytes));
  const std::string pci = absl::StrFormat("sys/bus/pci/devices/0000:%02x:00.0", gpu.bus);
  Write(pci + "/vendor", "0x1002\n");
  Write(pci + "/device", absl::StrFormat("0x%04x\n", gpu.pci_device));
  Write(pci + "/class", "0x038000\n");
  Write(pci + "/current_link_speed", "8.0 GT/s PCIe\n");
  Write(pci + "/current_link_width", "16\n");
  Write(pci + "/mem_info_vram_used", absl::StrFormat("%d\n", gpu.used_bytes));
  Link(pci + "/driver", "../../../../bus/pci/drivers/amdgpu");
  Write(absl::StrFormat("dev/dri/renderD%d", gpu.render_minor), "");
}

}  // namespace gdn::doctor
