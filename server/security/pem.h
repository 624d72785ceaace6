// Certificates and keys as files have them, checked before gRPC sees them: of a pair that does not belong together it
// would keep nothing at all.
//
// Thread safety: free functions. Errors: INVALID_ARGUMENT that names the file, and what is wrong with what is in it.
//
//   GDN_ASSIGN_OR_RETURN(const std::string pem, ReadPemFile("server.crt", "--tls-cert"));
//   GDN_RETURN_IF_ERROR(CheckCertificateChain(pem, "server.crt", "--tls-cert"));
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace gdn {

// `flag` is what names the file, for the errors.
absl::StatusOr<std::string> ReadPemFile(const std::string& path, std::string_view flag);

// Certificates, one or more; the first, which is its holder's, valid now.
absl::Status CheckCertificateChain(const std::string& pem, std::string_view path, std::string_view flag);

// The key of the chain's first certificate, not encrypted.
absl::Status CheckKeyOf(const std::string& key_pem, const std::string& chain_pem, std::string_view path,
                        std::string_view flag);

}  // namespace gdn
