// `quotas` of the file of flags: what callers may use.
//
//   quotas:
//     all: {sessions: 5000, tokens-per-second: 200000}     # all callers together
//     default: {sessions: 100, token-burst: 4096, tokens-per-second: 2000}
//     principals:
//       search: {weight: 4, sessions: 2000, tokens-per-second: none}   # the rest is as in `default`
//
// A number of bytes is written as in flags, a time as 24h; `none` is no limit.
// Thread safety: free functions. Ownership: values.
//
//   std::vector<ConfigFault> faults;
//   const QuotaSettings quotas = ParseQuotas("{default: {sessions: 100}}", faults);
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "server/admission/quota_limits.h"
#include "server/config/value_form.h"
#include "server/config/yaml_tree.h"

namespace gdn {

// What is good in it; what is not is added to `faults`.
QuotaSettings ReadQuotas(const YamlNode& section, std::vector<ConfigFault>& faults);
// Of YAML text; "" is no quota at all.
QuotaSettings ParseQuotas(std::string_view text, std::vector<ConfigFault>& faults);

// One line of YAML that says the same, "" for no quota at all.
std::string PrintQuotas(const QuotaSettings& quotas);

// ParseQuotas and PrintQuotas as the form of a flag.
ValueForm<QuotaSettings> Quotas();

}  // namespace gdn
