// Assertions on absl::StatusOr, which give the value or end the test with the status; and on errors with their reasons.
//
//   GDN_ASSERT_OK_AND_ASSIGN(const auto file, MappedFile::Open(path));
#pragma once

#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"

#define GDN_ASSERT_OK_AND_ASSIGN(lhs, ...) \
  GDN_ASSERT_OK_AND_ASSIGN_IMPL_(GDN_MACRO_CONCAT_(gdn_statusor_, __LINE__), lhs, (__VA_ARGS__))

#define GDN_ASSERT_OK_AND_ASSIGN_IMPL_(statusor, lhs, rexpr) \
  auto statusor = rexpr;                                     \
  ASSERT_TRUE(statusor.ok()) << statusor.status();           \
  lhs = std::move(statusor).value()

namespace gdn {

// Expects that the status has this code and reason. `what`: begins the message of a failure.
inline void ExpectError(const absl::Status& status, absl::StatusCode code, std::string_view reason,
                        std::string_view what = "") {
  EXPECT_EQ(status.code(), code) << what << ": " << status;
  EXPECT_EQ(ErrorReason(status), reason) << what << ": " << status;
}

}  // namespace gdn
