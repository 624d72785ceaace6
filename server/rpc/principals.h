// What callers are called inside the server: a keyed digest (HMAC-SHA-256) of what they are known by, so that nobody
// who sees a name, in a folder or in a store, can find out whose it is by trying tokens. Of a principal that the server
// lists the digest is of its listed name, whatever token it brings.
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
#include "server/rpc/principal_list.h"

namespace gdn {

class Principals {
 public:
  Principals(std::string key, PrincipalList list) : key_(std::move(key)), list_(std::move(list)) {}

  // Of the fields in their order; equal names mean equal fields. "" where there are none.
  std::string NameOf(const std::vector<std::string_view>& fields) const;
  // Of a listed principal.
  std::string NameOfListed(const std::string& listed) const;

 private:
  std::string Digest(std::string_view text) const;

  const std::string key_;
  const PrincipalList list_;
};

// A key as a file has it, whatever is in it, but for white space at its end. INVALID_ARGUMENT (INVALID_SPEC: field)
// where that is shorter than 16 bytes or cannot be read.
absl::StatusOr<std::string> ReadPrincipalKey(const std::string& path);

}  // namespace gdn
