// Names of principals inside the server: a keyed digest (HMAC-SHA-256) of the caller's credential. Nobody who sees a
// name, in a folder or in a store, can find the caller by trying tokens. For a listed principal it is the digest of the
// listed name, so the name stays when its token changes.
//
// Thread safety: constant after construction; safe from any thread. Ownership: owns the key and the list.
//
//   const Principals principals(key, list);
//   std::string name = principals.NameOf({"Bearer secret"});  // 64 hexadecimal digits
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "server/rpc/callers/principal_list.h"

namespace gdn {

class Principals {
 public:
  Principals(std::string key, PrincipalList list) : key_(std::move(key)), list_(std::move(list)) {}

  // Returns the name for a caller's credentials: 64 hexadecimal digits, or "" if `fields` is empty. If one of them is
  // listed, the name is that of the listed principal (NameOfListed). Otherwise other credentials, or the same in
  // another order, have another name.
  std::string NameOf(const std::vector<std::string_view>& fields) const;
  // Returns the name of the principal that is listed as `listed`: 64 hexadecimal digits. It need not be in the list.
  std::string NameOfListed(const std::string& listed) const;

 private:
  std::string Digest(std::string_view text) const;

  const std::string key_;
  const PrincipalList list_;
};

// Reads a key file. The key is its whole content without white space at the end. INVALID_ARGUMENT (INVALID_SPEC: field)
// if the file cannot be read or the key is shorter than 16 bytes.
absl::StatusOr<std::string> ReadPrincipalKey(const std::string& path);

}  // namespace gdn
