// Early return from a coroutine on a failed absl::Status or absl::StatusOr: base/status_macros.h with co_return.
//
// The expression may co_await. The macros are statements, because GCC 12 cannot compile statement expressions there.
//
//   GDN_CO_RETURN_IF_ERROR(co_await room.Take(bytes, deadline));
//   GDN_CO_ASSIGN_OR_RETURN(auto rows, co_await sessions.Find(names, deadline));
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/status_macros.h"

// A named status and no `if (auto s = co_await ...)`: GCC 12 drops such conditions if they have temporaries.
#define GDN_CO_RETURN_IF_ERROR(expr)                               \
  do {                                                             \
    absl::Status gdn_co_status_ = (expr);                          \
    if (!gdn_co_status_.ok()) co_return std::move(gdn_co_status_); \
  } while (false)

#define GDN_CO_ASSIGN_OR_RETURN(lhs, rexpr) \
  GDN_CO_ASSIGN_OR_RETURN_IMPL_(GDN_MACRO_CONCAT_(gdn_co_statusor_, __LINE__), lhs, rexpr)

#define GDN_CO_ASSIGN_OR_RETURN_IMPL_(statusor, lhs, rexpr)   \
  auto statusor = (rexpr);                                    \
  if (!statusor.ok()) co_return std::move(statusor).status(); \
  lhs = std::move(statusor).value()
