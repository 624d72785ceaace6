// Every line of `gdnctl doctor`, on nodes that are planted in a folder.
#include <cerrno>
#include <cstdlib>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tools/gdnctl/planted_node.h"
#include "tests/tools/gdnctl/run_command.h"
#include "tools/gdnctl/commands.h"
#include "tools/gdnctl/doctor/checks.h"

namespace gdn::doctor {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class Doctor : public ::testing::Test {
 protected:
  // The user of the checks: neither root nor the owner of the planted files, in no group of theirs.
  Doctor() {
    identity_.uid = 54321;
    identity_.groups = {54321};
  }

  std::vector<Check> Examine(const Requirements& requirements = {}) {
    const NodeFacts facts = ReadNode({.root = node_.root(), .identity = identity_, .open_device = open_device_});
    return CheckNode(facts, runtime_.value_or(FindHipRuntime(node_.root())), environment_, requirements);
  }

  // The check of that name; there must be exactly one.
  Check Find(const std::string& name, const Requirements& requirements = {}) {
    checks_ = Examine(requirements);
    std::vector<Check> found;
    for (const Check& check : checks_) {
      if (check.name == name) found.push_back(check);
    }
    EXPECT_EQ(found.size(), 1u) << name;
    return found.empty() ? Check() : found[0];
  }

  void ExpectMissing(const std::string& name, const std::string& found, const std::string& to_do) {
    const Check check = Find(name);
    EXPECT_EQ(VerdictName(check.verdict), "missing") << check.found;
    EXPECT_THAT(check.found, HasSubstr(found));
    EXPECT_THAT(check.to_do, HasSubstr(to_do));
    EXPECT_FALSE(Usable(checks_));
    EXPECT_THAT(Summary(checks_), HasSubstr("doctor: NOT usable: "));
    EXPECT_THAT(Summary(checks_), HasSubstr(name));
  }

  void ExpectOk(const std::string& name, const std::string& found) {
    const Check check = Find(name);
    EXPECT_EQ(VerdictName(check.verdict), "ok") << check.found;
    EXPECT_THAT(check.found, HasSubstr(found));
    EXPECT_EQ(check.to_do, "");
  }

  PlantedNode node_;
  Identity identity_;
  Environment environment_;
  std::optional<HipRuntime> runtime_;
  std::function<int(const std::string&)> open_device_;
  std::vector<Check> checks_;
};

TEST_F(Doctor, FindsNothingMissingOnAWholeNode) {
  ExpectOk("card", "0000:03:00.0 Instinct MI50 / MI60 (1002:66a1)");
  ExpectOk("driver", "amdgpu of the kernel, kernel 6.1.0-35-amd64");
  ExpectOk("/dev/kfd", "opens");
  ExpectOk("topology", "node 1: gfx906 Instinct MI50 / MI60, 16.0 GiB, 0000:03:00.0, 8.0 GT/s PCIe x16");
  ExpectOk("/dev/dri", "/dev/dri/renderD128 opens");
  ExpectOk("visible", "all GPUs are visible");
  ExpectOk("gfx name", "gfx906");
  ExpectOk("memory", "16.0 GiB of 16.0 GiB free; asked for: 4.0 GiB");
  ExpectOk("HIP runtime", "/usr/lib/x86_64-linux-gnu/libamdhip64.so.5 5.2.21153");
  ExpectOk("build", "gfx906");
  EXPECT_TRUE(Usable(checks_));
  EXPECT_THAT(Summary(checks_), HasSubstr("doctor: usable: "));
}

TEST_F(Doctor, NamesTheVersionOfAnOutOfTreeDriver) {
  node_.Write("sys/module/amdgpu/version", "5.16.9.22.20\n");
  ExpectOk("driver", "amdgpu 5.16.9.22.20, kernel");
}

TEST_F(Doctor, SaysThatThereIsNoCard) {
  node_.Remove("sys");
  node_.Remove("dev");
  ExpectMissing("card", "no AMD GPU on the PCI bus", "seat");
  ExpectMissing("driver", "amdgpu is not loaded, kernel 6.1.0-35-amd64", "modprobe amdgpu");
  ExpectMissing("/dev/kfd", "there is no /dev/kfd", "comes with the driver");
  ExpectMissing("/dev/dri", "there is no /dev/dri/renderD*", "comes with the driver");
  for (const char* name : {"topology", "gfx name", "memory", "HIP devices"}) {
    EXPECT_EQ(VerdictName(Find(name).verdict), "unknown") << name;
  }
}

TEST_F(Doctor, SaysThatTheCardIsAnotherMaker) {
  node_.Write("sys/bus/pci/devices/0000:03:00.0/vendor", "0x10de\n");
  node_.Remove("sys/class/kfd/kfd/topology/nodes/1");
  ExpectMissing("card", "no AMD GPU", "seat");
}

TEST_F(Doctor, SaysThatTheCardIsGivenToAVirtualMachine) {
  node_.Link("sys/bus/pci/devices/0000:03:00.0/driver", "../../drivers/vfio-pci");
  ExpectMissing("card", "bound to vfio-pci", "bind it to amdgpu");
  ExpectMissing("driver", "drives no card", "dmesg");
}

TEST_F(Doctor, SaysThatTheDriverTookNoCard) {
  node_.Remove("sys/bus/pci/devices/0000:03:00.0/driver");
  ExpectOk("card", "0000:03:00.0");
  ExpectMissing("driver", "drives no card", "Above 4G decoding");
}

TEST_F(Doctor, ToleratesAPciBusThatCannotBeSeen) {
  node_.Remove("sys/bus");
  EXPECT_EQ(VerdictName(Find("card").verdict), "note");
  EXPECT_TRUE(Usable(checks_));
}

TEST_F(Doctor, SaysThatAContainerLacksKfd) {
  node_.Remove("dev/kfd");
  ExpectMissing("/dev/kfd", "there is no /dev/kfd", "--device /dev/kfd");
}

TEST_F(Doctor, NamesTheGroupThatMayOpenKfd) {
  node_.SetMode("dev/kfd", 0660);
  const std::string id = std::to_string(node_.GroupOf("dev/kfd"));
  node_.Write("etc/group", "render:x:" + id + ":\n");
  ExpectMissing("/dev/kfd", "belongs to group render (" + id + ") with mode 0660; user 54321 is in none of its groups",
                "'usermod -aG render USER'");
  EXPECT_THAT(Find("/dev/kfd").to_do, HasSubstr("--group-add " + id));
  identity_.groups.insert(node_.GroupOf("dev/kfd"));
  ExpectOk("/dev/kfd", "group render (" + id + ")");
}

TEST_F(Doctor, NamesTheGroupByNumberWhereItHasNoName) {
  node_.SetMode("dev/dri/renderD128", 0660);
  node_.Write("etc/group", "");
  const std::string id = std::to_string(node_.GroupOf("dev/dri/renderD128"));
  ExpectMissing("/dev/dri", "/dev/dri/renderD128 belongs to group " + id, "supplementalGroups: [" + id + "]");
}

TEST_F(Doctor, SaysThatNotEvenTheGroupMayOpenKfd) {
  node_.SetMode("dev/kfd", 0600);
  ExpectMissing("/dev/kfd", "mode 0600", "udev");
}

TEST_F(Doctor, LetsRootPassEveryMode) {
  node_.SetMode("dev/kfd", 0600);
  identity_ = {.uid = 0, .groups = {}};
  open_device_ = [](const std::string&) { return 0; };
  ExpectOk("/dev/kfd", "opens");
}

TEST_F(Doctor, TellsAContainersDeviceRulesFromModes) {
  open_device_ = [](const std::string& path) { return path.find("kfd") == std::string::npos ? 0 : EPERM; };
  ExpectMissing("/dev/kfd", "a container's device rules do not", "--device /dev/kfd");
}

TEST_F(Doctor, SendsToTheKernelLogWhereADeviceFails) {
  open_device_ = [](const std::string& path) { return path.find("render") == std::string::npos ? 0 : ENODEV; };
  ExpectMissing("/dev/dri", "/dev/dri/renderD128 does not open: No such device", "dmesg");
}

TEST_F(Doctor, SaysThatTheTopologyIsNotThere) {
  node_.Remove("sys/class/kfd");
  ExpectMissing("topology", "there is no /sys/class/kfd/kfd/topology", "mount /sys");
}

TEST_F(Doctor, SaysThatNodesOfTheTopologyMayNotBeRead) {
  node_.Write("sys/class/kfd/kfd/topology/nodes/1/properties", "");
  ExpectMissing("topology", "1 nodes of the KFD topology may not be read", "/dev/dri/renderD*");
}

TEST_F(Doctor, SaysThatTheTopologyHasNoGpu) {
  node_.Remove("sys/class/kfd/kfd/topology/nodes/1");
  ExpectMissing("topology", "processors, but no GPU", "dmesg");
}

TEST_F(Doctor, SaysThatThereAreNoRenderNodes) {
  node_.Remove("dev/dri");
  ExpectMissing("/dev/dri", "there is no /dev/dri/renderD*", "--device /dev/dri");
}

TEST_F(Doctor, SaysThatTheRenderNodeIsAnotherCards) {
  node_.Remove("dev/dri/renderD128");
  node_.Write("dev/dri/renderD130", "");
  ExpectMissing("/dev/dri", "no /dev/dri/renderD128, the GPU's own; there is /dev/dri/renderD130", "renderD128");
}

TEST_F(Doctor, SaysThatTheEnvironmentHidesTheGpu) {
  environment_.hip_visible_devices = "1";
  ExpectMissing("visible", "HIP_VISIBLE_DEVICES=1 hides all of the node's 1 usable GPUs", "unset HIP_VISIBLE_DEVICES");
  environment_.hip_visible_devices = "";
  ExpectMissing("visible", "HIP_VISIBLE_DEVICES='' hides", "unset");
  environment_.hip_visible_devices = std::nullopt;
  environment_.rocr_visible_devices = "-1";
  ExpectMissing("visible", "ROCR_VISIBLE_DEVICES=-1 hides", "unset ROCR_VISIBLE_DEVICES");
}

TEST_F(Doctor, CountsTheVisibleGpus) {
  environment_.hip_visible_devices = "0";
  ExpectOk("visible", "HIP_VISIBLE_DEVICES=0: 1 GPU");
  environment_.rocr_visible_devices = "gpu-1122334455667788";
  ExpectOk("visible", "ROCR_VISIBLE_DEVICES=gpu-1122334455667788, HIP_VISIBLE_DEVICES=0: 1 GPU");
}

TEST_F(Doctor, SaysThatNoKernelsAreBuiltForTheCard) {
  node_.AddGpu({.gfx_target_version = 100302, .pci_device = 0x73df});
  ExpectMissing("gfx name", "this node has gfx1032; kernels are built for gfx906", "-DGDN_HIP_ARCHITECTURES=gfx1032");
  EXPECT_EQ(VerdictName(Find("memory").verdict), "unknown");
  EXPECT_EQ(VerdictName(Find("gfx name", {.architectures = {"gfx906", "gfx1032"}}).verdict), "ok");
}

TEST_F(Doctor, IsContentWithOneSupportedGpuBesideAnother) {
  node_.AddGpu({.kfd_node = 2, .gfx_target_version = 90010, .bus = 4, .render_minor = 129, .unique_id = 2});
  ExpectOk("gfx name", "gfx906");
  EXPECT_TRUE(Usable(checks_));
  environment_.hip_visible_devices = "1";
  ExpectMissing("gfx name", "this node has gfx90a", "gfx90a");
}

TEST_F(Doctor, NotesAnOverriddenGfxName) {
  environment_.hsa_override_gfx_version = "9.0.6";
  const Check check = Find("override");
  EXPECT_EQ(VerdictName(check.verdict), "note");
  EXPECT_THAT(check.found, HasSubstr("HSA_OVERRIDE_GFX_VERSION=9.0.6"));
  EXPECT_TRUE(Usable(checks_));
}

TEST_F(Doctor, SaysThatTheMemoryIsTaken) {
  node_.AddGpu({.used_bytes = int64_t{14} << 30});
  ExpectMissing("memory", "2.0 GiB of 16.0 GiB are free, 4.0 GiB are asked for", "--need");
  EXPECT_EQ(VerdictName(Find("memory", {.memory_bytes = int64_t{1} << 30}).verdict), "ok");
}

TEST_F(Doctor, SaysThatThereIsNoRuntime) {
  node_.Remove("usr");
  ExpectMissing("HIP runtime", "libamdhip64 does not load", "apt-get install libamdhip64-5");
  EXPECT_EQ(VerdictName(Find("HIP devices").verdict), "unknown");
}

TEST_F(Doctor, FindsTheNewestRuntime) {
  node_.Write("opt/rocm/lib/libamdhip64.so.6", "");
  ExpectOk("HIP runtime", "/opt/rocm/lib/libamdhip64.so.6, version not told");
}

TEST_F(Doctor, SaysThatTheRuntimeFindsNoDevice) {
  runtime_ = HipRuntime{.found = true,
                        .library = "libamdhip64.so.6",
                        .version = "6.4.0",
                        .error = "",
                        .device_count = 0,
                        .device_error = "hipErrorNoDevice: no ROCm-capable device is detected"};
  ExpectMissing("HIP devices", "(hipErrorNoDevice: no ROCm-capable device is detected), though the kernel shows one",
                "AMD_LOG_LEVEL");
  runtime_->device_error = "";
  ExpectMissing("HIP devices", "the runtime finds none, though", "another release");
  runtime_->device_count = 1;
  ExpectOk("HIP devices", "the runtime finds 1");
}

TEST_F(Doctor, NotesABuildWithoutKernels) {
  const Check check = Find("build", {.gpu_build = false});
  EXPECT_EQ(VerdictName(check.verdict), "note");
  EXPECT_THAT(check.to_do, HasSubstr("hip-gfx906"));
  EXPECT_TRUE(Usable(checks_));
}

TEST(GfxName, WritesSteppingsInHexadecimal) {
  EXPECT_EQ(GfxName(90006), "gfx906");
  EXPECT_EQ(GfxName(90010), "gfx90a");
  EXPECT_EQ(GfxName(100302), "gfx1032");
  EXPECT_EQ(GfxName(110001), "gfx1101");
  EXPECT_EQ(GfxName(0), "");
}

TEST(VisibleGpus, EndAtTheFirstEntryThatNamesNone) {
  GpuNode a, b;
  b.unique_id = 0xab;
  const std::vector<const GpuNode*> all = {&a, &b};
  EXPECT_THAT(VisibleGpus(all, "1,0"), ::testing::ElementsAre(&b, &a));
  EXPECT_THAT(VisibleGpus(all, "0,7,1"), ::testing::ElementsAre(&a));
  EXPECT_THAT(VisibleGpus(all, "GPU-00000000000000AB"), ::testing::ElementsAre(&b));
  EXPECT_THAT(VisibleGpus(all, "0,0"), ::testing::ElementsAre(&a));
  EXPECT_THAT(VisibleGpus(all, ""), ::testing::IsEmpty());
}

class DoctorCommand : public ::testing::Test {
 protected:
  DoctorCommand() {
    for (const char* name : {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"}) unsetenv(name);
  }

  int Run(const std::vector<std::string>& arguments) {
    Outcome outcome = RunCommand(DoctorCommands(), arguments);
    out_ = std::move(outcome.out);
    return outcome.exit_code;
  }

  PlantedNode node_;
  std::string out_;
};

TEST_F(DoctorCommand, ExitsWithZeroOnlyWhereNothingIsMissing) {
  EXPECT_EQ(Run({"doctor", "--root", node_.root()}), kExitOk) << out_;
  EXPECT_THAT(out_, HasSubstr("\ndoctor: usable: "));
  node_.Remove("dev/kfd");
  EXPECT_EQ(Run({"doctor", "--root", node_.root(), "--nojson"}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("missing  /dev/kfd     there is no /dev/kfd\n                      -> "));
  EXPECT_THAT(out_, HasSubstr("\ndoctor: NOT usable: 1 thing is missing (/dev/kfd); begin with the first\n"));
}

TEST_F(DoctorCommand, PrintsJson) {
  node_.Remove("dev/dri");
  EXPECT_EQ(Run({"doctor", "--json", "--root", node_.root()}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("\"usable\": false"));
  EXPECT_THAT(out_, HasSubstr("\"name\": \"/dev/dri\",\n      \"verdict\": \"missing\","));
  EXPECT_THAT(out_, Not(HasSubstr("doctor: usable")));
  Run({"doctor", "--nojson", "--root", node_.root()});
}

TEST_F(DoctorCommand, AsksForAsMuchMemoryAsItIsTold) {
  EXPECT_EQ(Run({"doctor", "--root", node_.root(), "--need", "40"}), kExitFailed);
  EXPECT_THAT(out_, HasSubstr("40.0 GiB are asked for"));
  EXPECT_EQ(Run({"doctor", "--root", node_.root(), "--need", "-1"}), kExitUsage);
  EXPECT_EQ(Run({"doctor", "--root", node_.root(), "--need", "4"}), kExitOk);
}

}  // namespace
}  // namespace gdn::doctor
