// Early return on a failed absl::Status or absl::StatusOr.
//
//   GDN_RETURN_IF_ERROR(Validate(params));
//   GDN_ASSIGN_OR_RETURN(auto file, SafetensorsFile::Open(path));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define GDN_RETURN_IF_ERROR(expr)                       \
  do {                                                  \
    if (auto gdn_status_ = (expr); !gdn_status_.ok()) { \
      return gdn_status_;                               \
    }                                                   \
  } while (false)

#define GDN_MACRO_CONCAT_INNER_(a, b) a##b
#define GDN_MACRO_CONCAT_(a, b) GDN_MACRO_CONCAT_INNER_(a, b)

#define GDN_ASSIGN_OR_RETURN(lhs, rexpr) \
  GDN_ASSIGN_OR_RETURN_IMPL_(GDN_MACRO_CONCAT_(gdn_statusor_, __LINE__), lhs, rexpr)

#define GDN_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, rexpr) \
  auto statusor = (rexpr);                               \
  if (!statusor.ok()) {                                  \
    return std::move(statusor).status();                 \
  }                                                      \
  lhs = std::move(statusor).value()
