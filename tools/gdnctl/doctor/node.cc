#include "tools/gdnctl/doctor/node.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/string_cat.h"

namespace gdn::doctor {
namespace {

namespace fs = std::filesystem;

constexpr uint32_t kAmdVendor = 0x1002;
// Memory banks of a topology node: frame buffer visible to the host, and the rest of it.
constexpr uint64_t kHeapFrameBufferPublic = 1;
constexpr uint64_t kHeapFrameBufferPrivate = 2;

std::optional<std::string> ReadText(const fs::path& path) {
  std::ifstream file(path);
  if (!file) return std::nullopt;
  std::ostringstream text;
  text << file.rdbuf();
  if (file.bad()) return std::nullopt;
  return std::string(absl::StripAsciiWhitespace(text.str()));
}

uint32_t ReadHex(const fs::path& path) {
  uint32_t value = 0;
  if (const auto text = ReadText(path)) static_cast<void>(absl::SimpleHexAtoi(*text, &value));
  return value;
}

std::vector<fs::path> Entries(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(it->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// "key value" lines.
std::map<std::string, uint64_t> Properties(const std::string& text) {
  std::map<std::string, uint64_t> properties;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    const std::pair<std::string, std::string> parts = absl::StrSplit(line, absl::MaxSplits(' ', 1));
    uint64_t value = 0;
    if (absl::SimpleAtoi(parts.second, &value)) properties[parts.first] = value;
  }
  return properties;
}

int OpenDevice(const std::string& path) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK);
  if (file < 0) return errno;
  close(file);
  return 0;
}

bool MayReadAndWrite(const struct stat& file, const Identity& identity) {
  if (identity.uid == 0) return true;
  const mode_t bits = file.st_mode;
  if (file.st_uid == identity.uid) return (bits & 0600) == 0600;
  if (identity.groups.count(file.st_gid) > 0) return (bits & 0060) == 0060;
  return (bits & 0006) == 0006;
}

class Reader {
 public:
  explicit Reader(const NodeOptions& options) : options_(options), root_(options.root) {}

  NodeFacts Read() {
    facts_.identity = options_.identity;
    facts_.kernel_release = ReadText(At("/proc/sys/kernel/osrelease")).value_or("");
    std::error_code error;
    facts_.driver_loaded = fs::is_directory(At("/sys/module/amdgpu"), error);
    facts_.driver_version = ReadText(At("/sys/module/amdgpu/version")).value_or("");
    ReadGroups();
    ReadCards();
    facts_.kfd = ReadDeviceFile("/dev/kfd");
    for (const fs::path& entry : Entries(At("/dev/dri"))) {
      const std::string name = entry.filename().string();
      if (absl::StartsWith(name, "renderD")) facts_.render_files.push_back(ReadDeviceFile(StrCat("/dev/dri/", name)));
    }
    ReadTopology();
    return std::move(facts_);
  }

 private:
  fs::path At(const std::string& absolute) const { return root_ / absolute.substr(1); }

  void ReadGroups() {
    for (const absl::string_view line : absl::StrSplit(ReadText(At("/etc/group")).value_or(""), '\n')) {
      const std::vector<std::string> fields = absl::StrSplit(line, ':');
      uint32_t id = 0;
      if (fields.size() >= 3 && absl::SimpleAtoi(fields[2], &id)) facts_.group_names[id] = fields[0];
    }
  }

  DeviceFile ReadDeviceFile(const std::string& path) const {
    DeviceFile device{.path = path};
    struct stat file = {};
    if (stat(At(path).c_str(), &file) != 0) return device;
    device.exists = true;
    device.owner = file.st_uid;
    device.group = file.st_gid;
    device.mode = file.st_mode & 0777;
    device.permitted = MayReadAndWrite(file, options_.identity);
    if (device.permitted) {
      const std::string target = At(path).string();
      device.open_error = options_.open_device ? options_.open_device(target) : OpenDevice(target);
    }
    return device;
  }

  void ReadCards() {
    for (const fs::path& entry : Entries(At("/sys/bus/pci/devices"))) {
      const uint32_t device_class = ReadHex(entry / "class") >> 8;
      const bool computes = device_class >> 8 == 0x03 || device_class == 0x1200;  // display, processing accelerator
      if (ReadHex(entry / "vendor") != kAmdVendor || !computes) continue;
      PciCard card{.address = entry.filename().string(), .device_id = ReadHex(entry / "device")};
      std::error_code error;
      const fs::path driver = fs::read_symlink(entry / "driver", error);
      if (!error) card.driver = driver.filename().string();
      facts_.cards.push_back(std::move(card));
    }
  }

  void ReadTopology() {
    const fs::path nodes = At("/sys/class/kfd/kfd/topology/nodes");
    std::error_code error;
    facts_.topology_exists = fs::is_directory(nodes, error);
    std::map<int, fs::path> by_number;  // 10 after 9: the order in which the runtime counts devices
    for (const fs::path& entry : Entries(nodes)) {
      int number = 0;
      if (absl::SimpleAtoi(entry.filename().string(), &number)) by_number[number] = entry;
    }
    for (const auto& [number, folder] : by_number) {
      const auto text = ReadText(folder / "properties");
      if (!text || text->empty()) {
        ++facts_.unreadable_nodes;
        continue;
      }
      auto properties = Properties(*text);
      if (properties["simd_count"] == 0) continue;  // a processor
      facts_.gpus.push_back(ReadGpu(number, folder, properties));
    }
  }

  GpuNode ReadGpu(int number, const fs::path& folder, std::map<std::string, uint64_t>& node) const {
    GpuNode gpu;
    gpu.kfd_node = number;
    gpu.gfx = GfxName(static_cast<uint32_t>(node["gfx_target_version"]));
    gpu.unique_id = node["unique_id"];
    gpu.device_id = static_cast<uint32_t>(node["device_id"]);
    if (node["drm_render_minor"] > 0) gpu.render_minor = static_cast<int>(node["drm_render_minor"]);
    for (const fs::path& bank : Entries(folder / "mem_banks")) {
      auto properties = Properties(ReadText(bank / "properties").value_or(""));
      const uint64_t heap = properties["heap_type"];
      if (heap == kHeapFrameBufferPublic || heap == kHeapFrameBufferPrivate) {
        gpu.memory_bytes += static_cast<int64_t>(properties["size_in_bytes"]);
      }
    }
    const uint64_t location = node["location_id"];  // bus, device and function
    gpu.pci_address = absl::StrFormat("%04x:%02x:%02x.%x", node["domain"], (location >> 8) & 0xff,
                                      (location >> 3) & 0x1f, location & 7);
    const fs::path pci = At("/sys/bus/pci/devices") / gpu.pci_address;
    const std::string speed = ReadText(pci / "current_link_speed").value_or("");
    const std::string width = ReadText(pci / "current_link_width").value_or("");
    if (!speed.empty() && !width.empty()) gpu.link = StrCat(speed, " x", width);
    int64_t bytes = 0;
    if (absl::SimpleAtoi(ReadText(pci / "mem_info_vram_used").value_or(""), &bytes)) gpu.used_bytes = bytes;
    if (gpu.memory_bytes == 0 && absl::SimpleAtoi(ReadText(pci / "mem_info_vram_total").value_or(""), &bytes)) {
      gpu.memory_bytes = bytes;
    }
    return gpu;
  }

  const NodeOptions& options_;
  const fs::path root_;
  NodeFacts facts_;
};

}  // namespace

const DeviceFile* GpuNode::render_node(const std::vector<DeviceFile>& files) const {
  const std::string path = StrCat("/dev/dri/renderD", render_minor);
  const auto found = std::find_if(files.begin(), files.end(), [&path](const auto& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

Identity ProcessIdentity() {
  Identity identity{.uid = geteuid(), .groups = {getegid()}};
  std::vector<gid_t> groups(static_cast<size_t>(std::max(0, getgroups(0, nullptr))));
  const int count = getgroups(static_cast<int>(groups.size()), groups.data());
  if (count > 0) identity.groups.insert(groups.begin(), groups.begin() + count);
  return identity;
}

NodeFacts ReadNode(const NodeOptions& options) { return Reader(options).Read(); }

std::string GfxName(uint32_t gfx_target_version) {
  if (gfx_target_version == 0) return "";
  return absl::StrFormat("gfx%d%x%x", gfx_target_version / 10000, gfx_target_version / 100 % 100,
                         gfx_target_version % 100);
}

std::string CardName(uint32_t pci_device_id) {
  static constexpr std::pair<uint32_t, const char*> kCards[] = {
      {0x66a0, "Instinct MI50 / MI60"}, {0x66a1, "Instinct MI50 / MI60"}, {0x66a2, "Radeon Pro Vega 20"},
      {0x66a3, "Radeon Pro Vega 20"},   {0x66a7, "Radeon Pro Vega 20"},   {0x66af, "Radeon VII"}};
  for (const auto& [id, name] : kCards) {
    if (id == pci_device_id) return name;
  }
  return "";
}

}  // namespace gdn::doctor
