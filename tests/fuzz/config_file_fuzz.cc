// The file of --config, and its section of quotas. The first byte chooses.
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/time/time.h"
#include "server/config/config_file.h"
#include "server/config/quota_section.h"
#include "tests/fuzz/fuzz_target.h"

ABSL_FLAG(int32_t, threads, 3, "N");
ABSL_FLAG(bool, reflection, true, "");
ABSL_FLAG(absl::Duration, checkpoint_every, absl::Seconds(5), "TIME");
ABSL_FLAG(std::string, redis, "", "ADDRESS");
ABSL_FLAG(std::string, quotas, "", "");
ABSL_FLAG(std::vector<std::string>, listen, {"a:1"}, "ADDRESS");
ABSL_FLAG(std::vector<std::string>, model, {}, "NAME=FOLDER");

namespace gdn {
namespace {

const ConfigKeys& Keys() {
  static const auto* const keys = [] {
    auto* made = new ConfigKeys;
    for (const char* name : {"threads", "reflection", "checkpoint_every", "redis", "quotas", "listen", "model"}) {
      made->emplace(name, absl::FindCommandLineFlag(name));
    }
    return made;
  }();
  return *keys;
}

// Each is in the file, and one line of a log.
void CheckFaults(std::string_view text, const std::vector<ConfigFault>& faults) {
  const auto lines = 1 + std::count(text.begin(), text.end(), '\n') + std::count(text.begin(), text.end(), '\r');
  for (const ConfigFault& fault : faults) {
    GDN_FUZZ_CHECK(!fault.what.empty(), "a fault that says nothing");
    GDN_FUZZ_CHECK(fault.place.line >= 0 && fault.place.line <= lines + 1, fault.ToString("FILE"));
    // yaml-cpp counts its mark of the end, which a \ may stand before.
    GDN_FUZZ_CHECK(fault.place.column >= 0 && static_cast<size_t>(fault.place.column) <= text.size() + 2,
                   fault.ToString("FILE"));
    const std::string line = fault.ToString("FILE");
    GDN_FUZZ_CHECK(
        std::none_of(line.begin(), line.end(), [](unsigned char letter) { return letter < 0x20 || letter == 0x7f; }),
        line);
  }
}

// What is read is printed, and that says the same.
void ReadConfigText(std::string_view text) {
  std::vector<ConfigFault> faults;
  const ConfigFile file = ParseConfig(text, Keys(), faults);
  CheckFaults(text, faults);
  for (const auto& [name, value] : file) GDN_FUZZ_CHECK(Keys().contains(name), name);
  if (!faults.empty()) return;
  ApplyConfig(file, Keys(), /*but_not=*/{}, faults);
  CheckFaults(text, faults);

  const std::string printed = PrintConfig(Keys());
  faults.clear();
  ApplyConfig(ParseConfig(printed, Keys(), faults), Keys(), /*but_not=*/{}, faults);
  GDN_FUZZ_CHECK(faults.empty(), printed + (faults.empty() ? "" : faults[0].ToString("PRINTED")));
  GDN_FUZZ_CHECK(PrintConfig(Keys()) == printed, printed);
}

void ReadQuotaText(std::string_view text) {
  std::vector<ConfigFault> faults;
  const QuotaSettings quotas = ParseQuotas(text, faults);
  CheckFaults(text, faults);
  if (!faults.empty()) return;
  const std::string printed = PrintQuotas(quotas);
  GDN_FUZZ_CHECK(ParseQuotas(printed, faults) == quotas && faults.empty(), printed);
  GDN_FUZZ_CHECK(printed.find('\n') == std::string::npos, printed);
}

}  // namespace
}  // namespace gdn

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  gdn::fuzz::Input input(data, size);
  if (input.Byte() % 2 == 0) {
    gdn::ReadConfigText(input.Rest());
  } else {
    gdn::ReadQuotaText(input.Rest());
  }
  return 0;
}
