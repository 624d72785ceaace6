// The list of principals: callers that the server knows by name. Each has its own share of memory and device time; all
// callers that are not listed have one share together.
//
// The list is a file that contains hashes, not secrets:
//   {"principals": [{"name": "search", "sha256": ["9f86d0..", ".."], "weight": 2}]}
// `sha256`: SHA-256 of each credential of the principal, as 64 hexadecimal digits. A credential is the whole value of
// the `authorization` metadata ("Bearer TOKEN") or a TLS identity. A principal may have several, so that a token can be
// replaced; sessions belong to the name. `weight`: its share, 1 by default. All callers that are not listed have weight
// 1 together.
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
  std::string file = {};  // path of the list; "": nobody is listed
  // Path of the key for names (principals.h); "": the server makes a key and keeps it with the states.
  std::string key_file = {};
};

struct PrincipalList {
  std::map<std::string, double> weights;  // weight of each listed principal, by name
  // Listed name of each credential, by the credential's SHA-256 as 64 lower-case hexadecimal digits.
  std::map<std::string, std::string> names_by_digest;

  // Returns the listed name of the first of `fields` that is a listed credential; nullptr if none is. `fields`: the
  // caller's credentials, not hashed. The name belongs to this list.
  const std::string* Find(const std::vector<std::string_view>& fields) const;
};

// Read the list from a file, and from a text; errors name `path`. INVALID_ARGUMENT (INVALID_SPEC: field) if the file
// cannot be read, does not have the form in this file's comment, lists a name or digest twice, or a weight outside (0,
// 1e6].
absl::StatusOr<PrincipalList> ReadPrincipalList(const std::string& path);
absl::StatusOr<PrincipalList> ParsePrincipalList(std::string_view text, std::string_view path);

}  // namespace gdn
