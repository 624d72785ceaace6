// gdn_parity: every operator against its float64 reference, on random inputs.

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/flag.h"
#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/error.h"
#include "base/product_math.h"
#include "base/standard_streams.h"
#include "base/version/version.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/gpu/dot2_probe.h"
#include "kernels/gpu_backend/gpu_backend.h"
#include "tools/common/tool_flags.h"
#include "tools/gdn_parity/dot2_report.h"
#include "tools/gdn_parity/dump.h"
#include "tools/gdn_parity/report.h"

ABSL_FLAG(std::string, backend, "cpu",
          "Backend to compare with the references: cpu, gpu, or host (the GPU kernels on the SIMT executor). gpu and "
          "host depend on the build.");
ABSL_FLAG(int, device, 0, "Number of the GPU, counted among those that HIP_VISIBLE_DEVICES leaves.");
ABSL_FLAG(int, wave_width, 0,
          "Lanes of a wave on --backend=host: 64 or 32. 0: the value of GDN_HOST_WAVE_WIDTH, else 64.");
ABSL_FLAG(int, threads, 0, "Threads of the CPU backend. 0: one for each processor.");
ABSL_FLAG(std::string, math, "exact",
          "exact, half or int8: how projections multiply. The references round their operands alike.");
ABSL_FLAG(std::string, matrix_units, "auto",
          "auto or off: whether products run on a GPU's matrix units. --backend=host has them with --wave_width=32.");
ABSL_FLAG(std::string, suite, "", "Run this suite only (see --list).");
ABSL_FLAG(std::string, test, "", "Run this test only (see --list).");
ABSL_FLAG(int, phase, 0, "Run only this phase of the suite `phases`: 1 to 8. 0: all.");
ABSL_FLAG(uint64_t, seed, 1, "Seed of the random inputs.");
ABSL_FLAG(std::string, dump, "",
          "Existing directory to write each row's inputs and outputs to, for scripts/check_parity_dump.py.");
ABSL_FLAG(bool, slow, false, "With --backend=host, also run tests that take minutes.");
ABSL_FLAG(bool, dot2, false,
          "Ask the GPU what its dot product of fp16 numbers computes, print that, and run nothing else.");
ABSL_FLAG(bool, list, false, "Print the suites and tests, and run nothing.");

namespace gdn::parity {
namespace {

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

absl::StatusOr<std::unique_ptr<Backend>> MakeNamedBackend(const std::string& name) {
  const std::string gpu(GpuBackendName());
  const std::string math_name = absl::GetFlag(FLAGS_math);
  const std::optional<ProductMath> math = ParseProductMath(math_name);
  if (!math.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat("--math is '", math_name, "'; expected exact, half or int8"));
  }
  if (name == "cpu") return MakeCpuBackend({.threads = absl::GetFlag(FLAGS_threads), .math = *math});
  if (name == gpu) {
    return MakeGpuBackend({.device = absl::GetFlag(FLAGS_device),
                           .math = *math,
                           .matrix_units = absl::GetFlag(FLAGS_matrix_units) != "off"});
  }
  return absl::InvalidArgumentError(absl::StrCat("no backend named '", name, "'; this build has: cpu, ", gpu));
}

absl::Status CheckMatrixUnits() {
  const std::string text = absl::GetFlag(FLAGS_matrix_units);
  if (text == "auto" || text == "off") return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("--matrix-units is '", text, "'; expected auto or off"));
}

int UsageError(const absl::Status& status) {
  std::cerr << "gdn_parity: " << std::string(status.message()) << "\nRun gdn_parity --help for the flags.\n";
  return kExitUsage;
}

// For backends made from here on.
absl::Status ChooseWaveWidth(int lanes) {
  if (lanes == 0) return absl::OkStatus();
  if (lanes != 32 && lanes != 64) {
    return absl::InvalidArgumentError(absl::StrCat("--wave_width is ", lanes, "; expected 64 or 32"));
  }
  if (absl::GetFlag(FLAGS_backend) != "host") {
    return absl::InvalidArgumentError("--wave_width is for --backend=host; a GPU's waves are as wide as they are");
  }
  setenv("GDN_HOST_WAVE_WIDTH", absl::StrCat(lanes).c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

// For --dot2.
int PrintDot2(Backend& backend) {
  const absl::StatusOr<gpu::Stream> stream = GpuStreamOf(backend);
  if (!stream.ok()) return UsageError(WithPrefix(stream.status(), "--dot2"));
  const absl::StatusOr<std::vector<float>> answers = gpu::AskDot2(*stream);
  if (!answers.ok()) {
    std::cerr << "gdn_parity: " << std::string(answers.status().message()) << "\n";
    return kExitFailed;
  }
  std::cout << Dot2Report(*answers);
  return 0;
}

int Main(int argc, char** argv) {
  constexpr std::string_view kUsage =
      "gdn_parity compares every operator of a backend with its float64 reference, on random inputs.\n"
      "  gdn_parity --backend=cpu [--suite S] [--test NAME] [--phase N] [--seed N] [--slow] [--list]\n"
      "Prints a row a case, with max|d|/max|reference| and the relative norm error, each beside its tolerance, and "
      "\"N passed, M failed, S not offered by this backend\".\n"
      "Exit status: 0 all passed, 1 some failed, 2 no such flag, suite, test, phase or backend.";
  const auto ours = [](const absl::CommandLineFlag& flag) { return absl::StrContains(flag.Filename(), "gdn_parity/"); };
  const absl::StatusOr<CommandFlags> line = SetFlags({argv + 1, argv + argc}, ours);
  if (!line.ok()) return UsageError(line.status());
  if (line->help) {
    std::cout << kUsage << "\n\nFlags:\n" << FlagsHelp(ours);
    return 0;
  }
  if (line->version) {
    std::cout << VersionText("gdn_parity");
    return 0;
  }
  if (!line->positional.empty()) {
    return UsageError(absl::InvalidArgumentError(absl::StrCat("unexpected argument '", line->positional[0], "'")));
  }

  auto cases =
      SelectCases(AllCases(), absl::GetFlag(FLAGS_suite), absl::GetFlag(FLAGS_test), absl::GetFlag(FLAGS_phase));
  if (!cases.ok()) return UsageError(cases.status());
  if (absl::GetFlag(FLAGS_slow)) {
    for (ParityCase& c : *cases) c.slow_on_executor = false;
  }
  if (absl::GetFlag(FLAGS_list)) {
    ListCases(*cases, std::cout);
    return 0;
  }
  if (const absl::Status status = ChooseWaveWidth(absl::GetFlag(FLAGS_wave_width)); !status.ok()) {
    return UsageError(status);
  }
  if (const absl::Status status = CheckMatrixUnits(); !status.ok()) return UsageError(status);
  setenv("GDN_HOST_MATRIX_UNITS", "1", /*overwrite=*/0);
  if (const absl::Status status = SetDumpDirectory(absl::GetFlag(FLAGS_dump)); !status.ok()) return UsageError(status);
  const auto backend = MakeNamedBackend(absl::GetFlag(FLAGS_backend));
  if (!backend.ok()) return UsageError(backend.status());
  if (absl::GetFlag(FLAGS_dot2)) return PrintDot2(**backend);
  return RunCases(*cases, **backend, absl::GetFlag(FLAGS_seed), std::cout).failed == 0 ? 0 : kExitFailed;
}

}  // namespace
}  // namespace gdn::parity

int main(int argc, char** argv) {
  gdn::OpenStandardStreams();
  return gdn::parity::Main(argc, argv);
}
