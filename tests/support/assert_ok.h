// Assertions on absl::StatusOr: the value, or the end of the test with the status.
//
//   GDN_ASSERT_OK_AND_ASSIGN(const auto file, MappedFile::Open(path));
#pragma once

#include <utility>

#include "base/status_macros.h"
#include "gtest/gtest.h"

#define GDN_ASSERT_OK_AND_ASSIGN(lhs, ...) \
  GDN_ASSERT_OK_AND_ASSIGN_IMPL_(GDN_MACRO_CONCAT_(gdn_statusor_, __LINE__), lhs, (__VA_ARGS__))

#define GDN_ASSERT_OK_AND_ASSIGN_IMPL_(statusor, lhs, rexpr) \
  auto statusor = rexpr;                                     \
  ASSERT_TRUE(statusor.ok()) << statusor.status();           \
  lhs = std::move(statusor).value()
