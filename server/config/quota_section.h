// The section `quotas` of the --config file: limits on what callers may use.
//
//   quotas:
//     all: {sessions: 5000, tokens-per-second: 200000}     # all callers together
//     default: {sessions: 100, token-burst: 4096, tokens-per-second: 2000}
//     principals:
//       search: {weight: 4, sessions: 2000, tokens-per-second: none}   # the rest is as in `default`
//
// Numbers of bytes are written as in flags, times as 24h. `none` means no limit.
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

// Returns the valid limits of the section `quotas`, and adds all faults to `faults`. A principal has the limits of
// `default` that it does not set itself.
QuotaSettings ReadQuotas(const YamlNode& section, std::vector<ConfigFault>& faults);
// Parses YAML text as the content of the section `quotas`. Returns its valid limits and adds all faults to `faults`.
// "" sets no quota.
QuotaSettings ParseQuotas(std::string_view text, std::vector<ConfigFault>& faults);

// Returns one line of YAML that sets the same quotas, or "" if there are none.
std::string PrintQuotas(const QuotaSettings& quotas);

// The form of the flag `quotas`: reads with ParseQuotas, prints with PrintQuotas.
ValueForm<QuotaSettings> Quotas();

}  // namespace gdn
