// Reads certificates and keys from PEM files, and checks them before gRPC gets them. gRPC would drop a pair that does
// not match, and have nothing left.
//
// Thread safety: free functions. Errors: INVALID_ARGUMENT names the file and says what is wrong with its content.
//
//   GDN_ASSIGN_OR_RETURN(const std::string pem, ReadPemFile("server.crt", "--tls-cert"));
//   GDN_RETURN_IF_ERROR(CheckCertificateChain(pem, "server.crt", "--tls-cert"));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

// Returns the text of a file, without looking at it. INVALID_ARGUMENT (INVALID_SPEC: field) if the file cannot be read.
// `flag`: the flag that names the file, for errors: "--tls-cert".
absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view flag);

// Checks that there are one or more certificates, none of them damaged, and that the first one, which is its holder's,
// has not expired and is valid already. `path`, `flag`: the file and its flag, for errors. INVALID_ARGUMENT
// (INVALID_SPEC: field).
absl::Status CheckCertificateChain(const std::string& pem, std::string_view path, std::string_view flag);

// Checks that the key is that of the chain's first certificate, and is not encrypted. `path`, `flag`: the key's file
// and its flag, for errors. INVALID_ARGUMENT (INVALID_SPEC: field).
absl::Status CheckKeyOf(const std::string& key_pem, const std::string& chain_pem, std::string_view path,
                        std::string_view flag);

}  // namespace gdn
