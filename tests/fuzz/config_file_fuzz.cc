// The file of --config, and its section of quotas. The first byte chooses.
#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/config/config_file.h"
#include "server/config/quota_section.h"
#include "server/config/value_form.h"
#include "tests/fuzz/fuzz_target.h"

namespace gdn {
namespace {

const ConfigKeys kKeys = {
    {"checkpoint-every", ValueShape::kText}, {"listen", ValueShape::kList}, {"model", ValueShape::kList},
    {"quotas", ValueShape::kQuotaMap},       {"redis", ValueShape::kText},  {"reflection", ValueShape::kSwitch},
    {"threads", ValueShape::kText}};

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

// A value of this form is printed as a text that says the same.
template <typename T>
void ReadValue(const ValueForm<T>& form, const std::string& text) {
  T value = {}, again = {};
  if (!form.read(text, value).empty()) return;
  const std::string printed = form.print(value);
  GDN_FUZZ_CHECK(form.read(printed, again).empty(), printed);
  GDN_FUZZ_CHECK(form.print(again) == printed, printed);
}

// A config that is read, printed and read again says the same.
void ReadConfigText(std::string_view text) {
  std::vector<ConfigFault> faults;
  const ConfigFile file = ParseConfig(text, kKeys, faults);
  CheckFaults(text, faults);
  std::map<std::string, std::string> values;
  for (const auto& [name, value] : file) {
    GDN_FUZZ_CHECK(kKeys.contains(name), name);
    values.emplace(name, value.text);
    ReadValue(Whole(0), value.text);
    ReadValue(Switch(), value.text);
    ReadValue(Pairs(), value.text);
    ReadValue(BytesOrAuto(), value.text);
    ReadValue(TimeOrNever(), value.text);
    ReadValue(Quotas(), value.text);
  }
  if (!faults.empty()) return;
  // A password in a URL is printed as [hidden], which stays so.
  const std::string printed = PrintConfig(values);
  std::map<std::string, std::string> again;
  for (const auto& [name, value] : ParseConfig(printed, kKeys, faults)) again.emplace(name, value.text);
  GDN_FUZZ_CHECK(faults.empty(), printed + (faults.empty() ? "" : faults[0].ToString("PRINTED")));
  GDN_FUZZ_CHECK(PrintConfig(again) == printed, printed);
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
