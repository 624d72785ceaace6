// Callers that the server knows by name: each with shares of its own in memory and time on the device, where all others
// have one allowance together.
//
// A file lists them, without their secrets:
//   {"principals": [{"name": "search", "sha256": ["9f86d0..", ".."], "weight": 2}]}
// `sha256`: of what such a caller is known by, 64 hexadecimal digits each: the whole value of its `authorization`
// metadata ("Bearer TOKEN"), or its TLS identity. Several are one principal, so that a token can be changed; a session
// belongs to the name. `weight`: 1 where it is left out; all callers that are not listed have 1 together.
// Thread safety: a value. Ownership: none.
//
//   GDN_ASSIGN_OR_RETURN(const PrincipalList list, ReadPrincipalList("principals.json"));
//   if (const std::string* name = list.Find({"Bearer secret"})) ...
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace gdn {

struct PrincipalOptions {
  std::string file = {};      // of a PrincipalList; "": nobody is listed
  std::string key_file = {};  // of the names' key (principals.h); "": a key that is kept with the states
};

struct PrincipalList {
  std::map<std::string, double> weights;               // by name
  std::map<std::string, std::string> names_by_digest;  // 64 lower case digits

  // The first that one of the fields is known by, or nullptr.
  const std::string* Find(const std::vector<std::string_view>& fields) const;
};

// INVALID_ARGUMENT (INVALID_SPEC: field) where the file cannot be read, or is not as above.
absl::StatusOr<PrincipalList> ReadPrincipalList(const std::string& path);
absl::StatusOr<PrincipalList> ParsePrincipalList(std::string_view text, std::string_view path);

}  // namespace gdn
